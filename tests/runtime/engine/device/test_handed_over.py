# SPDX-License-Identifier: Apache-2.0
"""The step that ends a prompt which is handed over leaves a mark, behind which its blocks are final, before the next
step is started."""

from typing import Any

import pytest
from pretend_device import PretendDevice
from tiny import build, layout_of, reference, sequence

from pontil.gpu_ops.attention_backends.backend import AttentionBackend
from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.engine.device.device_runner import DeviceRunner
from pontil.runtime.engine.device.link import CudaLink
from pontil.runtime.engine.device.tile_forward import DeviceLimits
from pontil.runtime.engine.engine import Engine
from pontil.runtime.engine.prompt_turns import StepBudget
from pontil.runtime.engine.scheduler import Scheduler
from pontil.runtime.engine.sequences.sequence import FinishReason, Purpose


@pytest.mark.parametrize(("keeps_states", "alone"), [(False, True), (True, True), (False, False)])
def test_the_next_step_is_launched_behind_the_mark(
    keeps_states: bool, alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless a state is read for the peer, which waits for all that was started; in a worker of several ranks too."""
    monkeypatch.setattr(DeviceRunner, "may_begin_anew", alone)
    with PretendDevice() as there:
        model = build(reference(), device=str(there.device))
        layout = layout_of(model)
        storage, limits = KVStorage(layout, 30, there.device), DeviceLimits(8, 64, 30)
        runner = DeviceRunner(model, storage, CudaLink(there.device), limits, AttentionBackend())
        runner.keeps_states = keeps_states
        engine = Engine(runner, Scheduler(BlockPool(30), layout, 4, StepBudget(64)))
        handed, other, cleared, marks = sequence("h", [3] * 20, 9), sequence("o", [5] * 20, 4), [], []
        handed.purpose = Purpose.HANDOVER
        mark, clear = storage.mark, storage.clear_tail

        def marked() -> Any:
            marks.append(len(tape.kernels))
            return mark()

        def noted(block: int, filled: int) -> None:
            cleared.append((block, filled, len(tape.kernels)))
            clear(block, filled)

        monkeypatch.setattr(storage, "mark", marked)
        monkeypatch.setattr(storage, "clear_tail", noted)
        engine.add(handed)
        engine.add(other)
        with there.recording() as tape:
            outputs = engine.step()
            first = len(tape.kernels)
            # Its last block is cleared behind the prompt before anything is computed.
            assert cleared == [(handed.blocks[-1], 4, 0)] and first > 2
            assert (engine.in_flight is None) == keeps_states and (handed.history.mark is None) == keeps_states
            assert marks == ([] if keeps_states else [first])
            if not keeps_states:
                assert outputs == []
                outputs = engine.step()
                assert len(tape.kernels) > first and marks == [first], "the next step was started"
        assert {output.sequence.id: output.finish for output in outputs}["h"] is FinishReason.HANDED_OVER
        assert handed.history.mark is None or other.history.mark is None
