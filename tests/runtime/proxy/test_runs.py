# SPDX-License-Identifier: Apache-2.0
"""Runs through three stages: every fault at every moment, and always the same text and the same audio, once."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from stage_site import CHUNK, RATE, StageSite, answer_of, frames_of, sound_of

from pontil.runtime.accounting.counts import Usage
from pontil.runtime.errors import PontilError, RequestError, Unavailable
from pontil.runtime.proxy.run_stream import AudioDelta, AudioEnded, RunStream
from pontil.runtime.proxy.stream import Delta, Finished
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.wire.messages import Failed, NodeOutput, NodeTask, PassDone, Starved, Submit, Tokens

PROMPT = [5, 6, 7, 8]
PARAMS = SamplingParams(max_tokens=60, seed=1)
TOGETHER = ("thinker:0", "thinker:1", "talker:0", "talker:1", "wav:0", "wav:1")
SPLIT = (
    "thinker.prefill:0", "thinker.decode:0", "talker.prefill:0", "talker.decode:0", "wav:0",
    "thinker.prefill:1", "thinker.decode:1", "talker.prefill:1", "talker.decode:1", "wav:1",
)  # fmt: skip
SERVING = {TOGETHER: ("thinker:0", "talker:0", "wav:0"), SPLIT: SPLIT[:5]}


class Heard:
    """The reader of one run."""

    def __init__(self, stream: RunStream) -> None:
        self.stream = stream
        self.ids: list[int] = []
        self.audio = b""
        self.complete = False
        stream.listen(self.take)

    def take(self) -> None:
        for _, event in self.stream.drain():
            if isinstance(event, Delta):
                self.ids += event.ids
        for said in self.stream.drain_audio():
            if isinstance(said, AudioDelta):
                assert said.index == len(self.audio) and said.sample_rate == RATE and not self.complete
                self.audio += said.data
            else:
                assert said == AudioEnded(len(self.audio))
                self.complete = True


def site_of(tokenizer: Tokenizer, *workers: str, **options: Any) -> StageSite:
    site = StageSite(tokenizer, **options)
    site.join(*(workers or TOGETHER))
    return site


def expected(count: int) -> tuple[list[int], bytes, Usage]:
    ids = answer_of(PROMPT, count)
    frames = frames_of(PROMPT + ids[:-1], len(PROMPT))
    return ids, sound_of(frames[:-1]), Usage(len(PROMPT), len(ids) + len(frames), 0, len(frames))


def submit(site: StageSite, **options: Any) -> Heard:
    return Heard(site.runs.submit(PROMPT, PARAMS, **options))


def nothing_is_left(site: StageSite) -> None:
    assert site.idle and not site.conductor.runs and not site.dispatcher.stranded
    assert site.ledger.imbalance == 0
    assert all(worker.in_flight == worker.taken == 0 for worker in site.registry.workers.values())
    assert not any(worker.kept or worker.jobs for worker in site.workers.values())
    assert site.metrics.registry.get_sample_value("pontil_runs_running") == 0


def is_whole(site: StageSite, heard: Heard) -> None:
    ids, audio, usage = expected(site.count)
    assert heard.stream.error is None and heard.stream.is_over
    assert (heard.ids, heard.audio, heard.complete) == (ids, audio, True)
    assert heard.stream.usage == heard.stream.final_usage == usage
    end = heard.stream.end
    assert isinstance(end, Finished) and (end.reason, end.usage) == ("stop", usage)
    nothing_is_left(site)


@pytest.mark.parametrize("count", [0, 1, 2, 9])
@pytest.mark.parametrize("workers", [TOGETHER, SPLIT])
def test_a_run_gives_text_and_audio(tokenizer: Tokenizer, workers: tuple[str, ...], count: int) -> None:  # E16
    site = site_of(tokenizer, *workers, count=count)
    heard = submit(site)
    site.run_until_idle()
    is_whole(site, heard)
    assert site.released == {(name, heard.stream.run.id) for name in SERVING[workers]}


def length_of(tokenizer: Tokenizer, workers: tuple[str, ...]) -> int:
    site = site_of(tokenizer, *workers)
    submit(site)
    site.run_until_idle()
    return site.steps


@pytest.mark.parametrize("lag", [0, 3])
@pytest.mark.parametrize("notice", [0, 12])
@pytest.mark.parametrize(
    ("workers", "name"), [(workers, name) for workers, serving in SERVING.items() for name in serving]
)
def test_any_worker_may_be_lost_at_any_moment(
    tokenizer: Tokenizer, workers: tuple[str, ...], name: str, notice: int, lag: int
) -> None:  # E15, E16
    for moment in range(length_of(tokenizer, workers) + lag + 1):
        site = site_of(tokenizer, *workers, lag=lag)
        heard = submit(site)
        for _ in range(moment):
            site.step()
        site.kill(name, notice)
        site.run_until_idle()
        is_whole(site, heard)
