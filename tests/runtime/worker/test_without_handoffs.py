# SPDX-License-Identifier: Apache-2.0
"""Without handoffs the engine is scheduled as if there were no such thing (C11)."""

from pathlib import Path

import pytest
from workers import ScriptedProxy, Silent, drawn, everyone_clean, greedy, open_worker, prompt

from pontil.runtime.engine.scheduler import Scheduler
from pontil.runtime.engine.sequences.batch import Batch
from pontil.runtime.wire.messages import Submit
from pontil.runtime.worker.process.worker_request import make_request
from pontil.runtime.worker.start.assembly import assemble

# The work of each step: of which request, from which token, how many.
Steps = list[list[tuple[str, int, int]]]


def recorded(scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch) -> Steps:
    """Record the steps from now on, except for idle ones."""
    steps: Steps = []
    schedule = scheduler.schedule

    def recording() -> Batch:
        batch = schedule()
        if batch.spans:
            steps.append([(span.sequence.id, span.start, span.count) for span in batch.spans])
        return batch

    monkeypatch.setattr(scheduler, "schedule", recording)
    return steps


def submits(worker: str) -> list[Submit]:
    """Return more requests than there are seats, of every length around a block and a chunk, some with several
    choices."""
    lengths = (1, 15, 16, 17, 63, 64, 65, 150)
    made = [
        Submit("proxy", worker, f"r{at}", 0, prompt(length), drawn(9).to_wire()) for at, length in enumerate(lengths)
    ]
    return [*made, Submit("proxy", worker, "n", 0, prompt(30), greedy(5, n=3).to_wire())]


def test_batches_are_those_of_an_engine_that_knows_no_handoff(
    proxy: ScriptedProxy, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # C11
    worker = open_worker(model, tmp_path, "mixed:0", "mixed", max_num_seqs=4)
    proxy.admit(worker)
    ours = recorded(worker.machine.scheduler, monkeypatch)
    for submit in submits(worker.incarnation):
        worker.worker.submit(submit, 0.0)
    proxy.turn_until(lambda: not worker.requests)
    everyone_clean(proxy)

    alone = assemble(worker.config, Silent())
    plain = recorded(alone.scheduler, monkeypatch)
    for submit in submits("nobody"):
        alone.engine.add(make_request(submit, alone).sequence)
    while alone.engine.has_work:
        alone.engine.step()
    assert ours == plain and len(plain) > 20
    assert not worker.decode.peers and not worker.prefill.kv_sender.open
