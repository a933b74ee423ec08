# SPDX-License-Identifier: Apache-2.0
"""Runs through scripted stages: how a test begins one, reads it, and looks at what it left."""

from typing import Any

from stage_model import RATE, answer_of, frames_of, sound_of
from stage_site import StageSite

from pontil.runtime.accounting.counts import Usage
from pontil.runtime.proxy.requests.answer import Delta
from pontil.runtime.proxy.requests.ticket import Ticket
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.stages.runs.audio_mailbox import AudioDelta, AudioEnded
from pontil.runtime.stages.runs.entry import runs_of
from pontil.runtime.stages.runs.stream import RunStream
from pontil.runtime.tokenizer.tokenizer import Tokenizer

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
    return Heard(runs_of(site).submit(Ticket(), PROMPT, PARAMS, **options))


def nothing_is_left(site: StageSite) -> None:
    assert site.idle and not runs_of(site).conductor.runs and not site.dispatcher.stranded
    assert site.ledger.imbalance == 0
    assert all(worker.in_flight == worker.taken == 0 for worker in site.registry.workers.values())
    assert not any(worker.kept or worker.jobs for worker in site.workers.values())
    assert site.metrics.registry.get_sample_value("pontil_runs_running") == 0
