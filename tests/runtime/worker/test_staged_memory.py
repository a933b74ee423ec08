# SPDX-License-Identifier: Apache-2.0
"""Workers whose engine computes in a device's own memory, as on a GPU: blocks are staged in host memory."""

from pathlib import Path

import pytest
from staged import StagedStorage
from workers import PromptWorker, ScriptedProxy, drawn, everyone_clean, greedy, open_worker, prompt

from pontil.runtime.worker.start import loading


@pytest.fixture
def staged(
    proxy: ScriptedProxy, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[PromptWorker, PromptWorker]:
    monkeypatch.setattr(loading, "KVStorage", StagedStorage)
    prefill = open_worker(model, tmp_path, "prefill:0", "prefill", kernels="torch")
    decode = open_worker(model, tmp_path, "decode:0", "decode", kernels="torch")
    assert prefill.machine.storage.staged and decode.machine.storage.staged
    proxy.admit(prefill, decode)
    return prefill, decode


def test_prompts_side_by_side_are_handed_over_with_every_block(
    proxy: ScriptedProxy, staged: tuple[PromptWorker, PromptWorker]
) -> None:
    """Several prompts are computed together: in most steps some of them complete no block."""
    prefill, decode = staged
    names = [f"r{number}" for number in range(6)]
    for number, name in enumerate(names):
        proxy.submit_pair(prefill, decode, name, prompt(7 + 40 * number), drawn(6))
        proxy.submit(decode, f"whole-{name}", prompt(7 + 40 * number), drawn(6))
    split, whole = proxy.finish(*names), proxy.finish(*[f"whole-{name}" for name in names])
    assert [answer.ids for answer in split] == [answer.ids for answer in whole]
    everyone_clean(proxy)
    assert (decode.decode.counts.complete, decode.decode.counts.failed) == (6, 0)


@pytest.mark.parametrize("length", [1, 16, 40])
def test_what_both_have_cached_need_not_move(
    proxy: ScriptedProxy, staged: tuple[PromptWorker, PromptWorker], length: int
) -> None:
    """The second time little or nothing is pulled, and choices copy the block that they share."""
    prefill, decode = staged
    answers = []
    for name in ("one", "two"):
        proxy.submit_pair(prefill, decode, name, prompt(length), greedy(4, n=2, ignore_eos=True), salt="same")
        proxy.turn_until(lambda name=name: name in proxy.answers and proxy.answers[name].ended(2))  # type: ignore[misc]
        answers.append([proxy.answers[name].choice(number) for number in range(2)])
    assert answers[0] == answers[1] and not proxy.answers["two"].failures
    everyone_clean(proxy)
    assert decode.decode.counts.failed == 0
