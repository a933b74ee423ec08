# SPDX-License-Identifier: Apache-2.0
"""Drafts of real workers with a real, if tiny, model: the same answers by one worker and by two, and the counts of
drafts."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from effort import by_default
from workers import PromptWorker, ScriptedProxy, WorkerAnswer, drawn, everyone_clean, greedy, open_worker

from pontil.runtime.disaggregation.sender import KVSender
from pontil.runtime.sampling_params import SamplingParams

REPEATING = [20, 21, 22, 23, 24, 25] * 7
KINDS: dict[str, SamplingParams] = {
    "greedy": greedy(40, ignore_eos=True, logprobs=2),
    "seeded": drawn(40, top_k=2, seed=5),
    "choices": drawn(30, n=3, top_k=2, logprobs=0),
    "penalized": greedy(30, ignore_eos=True, frequency_penalty=0.3),
    "late end": greedy(40, min_tokens=20),
}


@pytest.fixture
def guessing(proxy: ScriptedProxy, model: Path, tmp_path: Path) -> Iterator[list[PromptWorker]]:
    """Open a pair that drafts, and a worker that does not."""
    made = [
        open_worker(model, tmp_path, "prefill:0", "prefill", speculative_tokens=6),
        open_worker(model, tmp_path, "decode:0", "decode", speculative_tokens=6),
        open_worker(model, tmp_path, "mixed:0", "mixed"),
    ]
    proxy.admit(*made)
    yield made
    everyone_clean(proxy)


def told(answer: WorkerAnswer, n: int) -> dict[str, Any]:
    """Return the contents of the frames, however they are cut."""
    said: dict[str, Any] = {"ids": [answer.choice(number) for number in range(n)], "logprobs": {}, "count": 0}
    for frame in answer.frames:
        for index, entries in enumerate(frame.logprobs or (), frame.index):
            assert said["logprobs"].setdefault((frame.choice, index), entries) == entries
        said["count"] += frame.generated_tokens or 0
    said["ends"] = sorted((frame.choice, frame.finish_reason) for frame in answer.frames if frame.finish_reason)
    return said


@pytest.mark.parametrize("kind", by_default({"greedy", "choices", "penalized"}, KINDS))
def test_a_pair_that_guesses_answers_as_one_that_does_not(
    proxy: ScriptedProxy, guessing: list[PromptWorker], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # B1, B7, C16
    prefill, decode, plain = guessing
    drafts: list[list[list[int]] | None] = []
    hold = KVSender.hold

    def held(*given: Any) -> None:
        drafts.append(given[3].drafts)
        hold(*given)

    monkeypatch.setattr(KVSender, "hold", held)
    params = KINDS[kind]
    proxy.submit(plain, "plain", REPEATING, params)
    proxy.submit(decode, "whole", REPEATING, params)
    proxy.submit_pair(prefill, decode, "split", REPEATING, params)
    names = ("plain", "whole", "split")
    proxy.turn_until(lambda: all(name in proxy.answers and proxy.answers[name].ended(params.n) for name in names))
    plainly, wholly, split = (told(proxy.answers[name], params.n) for name in names)
    assert plainly == wholly == split and plainly["count"] == sum(map(len, plainly["ids"]))
    frames = [frame for name in ("whole", "split") for frame in proxy.answers[name].frames]
    drafted = sum(frame.draft_tokens or 0 for frame in frames)
    assert drafted == decode.machine.engine.drafted and prefill.machine.engine.drafted == 0
    assert sum(frame.accepted_draft_tokens or 0 for frame in frames) == decode.machine.engine.accepted
    assert all(frame.draft_tokens is None for frame in proxy.answers["plain"].frames)
    assert (drafted > 0) == (kind != "penalized")
    (handed,) = drafts
    assert handed is None or all(len(draft) in (0, 6) for draft in handed)
    counters = decode.load().counters
    assert counters["draft_tokens"] == drafted and counters["generated_tokens"] >= 2 * plainly["count"] - params.n


def test_what_prefill_guessed_is_verified_first(proxy: ScriptedProxy, guessing: list[PromptWorker]) -> None:  # B7
    prefill, decode, plain = guessing
    prefill.machine.scheduler.drafts.most, decode.machine.scheduler.drafts.most = 3, 12
    params = greedy(40, ignore_eos=True, allowed_token_ids=tuple(REPEATING[:6]))
    proxy.submit(plain, "plain", REPEATING, params)
    proxy.submit_pair(prefill, decode, "split", REPEATING, params)
    plainly, split = proxy.finish("plain", "split")
    assert split.ids == plainly.ids
    drafted = [frame.draft_tokens for frame in split.frames if frame.sender == decode.incarnation]
    assert drafted[:2] == [3, 12]
