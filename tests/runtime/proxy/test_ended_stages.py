# SPDX-License-Identifier: Apache-2.0
"""Stages of a run that end before others, or before others have begun."""

import asyncio

import pytest
from stage_model import TALKER_END
from stage_site import StageSite

from pontil.runtime.accounting.counts import Usage
from pontil.runtime.proxy.requests.answer import Finished
from pontil.runtime.proxy.requests.ticket import Ticket
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.stages.runs import run
from pontil.runtime.stages.runs.entry import runs_of
from pontil.runtime.stages.runs.run import inputs_of
from pontil.runtime.tokenizer.tokenizer import Tokenizer

TOGETHER = ("thinker:0", "talker:0", "wav:0")
SPLIT = ("thinker.prefill:0", "thinker.decode:0", "talker.prefill:0", "talker.decode:0", "wav:0")


@pytest.mark.parametrize("workers", [TOGETHER, SPLIT], ids=["together", "split"])
def test_who_makes_items_hears_that_their_reader_has_ended(tokenizer: Tokenizer, workers: tuple[str, ...]) -> None:
    """The reader's worker may die as it ends, before it says so itself."""
    site = StageSite(tokenizer)
    site.join(*workers)
    site.workers[workers[0]].silent = True
    stream = runs_of(site).submit(Ticket(), [5, 6, 7, 8], SamplingParams(max_tokens=60, seed=1))
    requests = stream.run.requests
    makers = [name for name in workers if name.startswith("thinker")]
    talker = site.workers[workers[len(makers)]]
    (job,) = talker.jobs.values()
    talker.tell(job, 0, [TALKER_END], opens=True, reason="stop", made=1, frames=[[TALKER_END, 2]])
    talker.close(job, 0)
    assert not site.unread
    site.deliver()
    assert requests["talker"].complete
    assert site.unread == [(name, "thinker/talker/states") for name in makers]
    while not requests["wav"].complete:
        site.step()
    assert len(site.unread) == len(makers), "the stage before it has ended too"
    stream.cancel()


@pytest.mark.parametrize("whole", [True, False])
def test_a_run_whose_client_leaves_before_it_begins_is_closed(tokenizer: Tokenizer, whole: bool) -> None:
    """Its later stages never begin, and so never end."""
    site = StageSite(tokenizer)
    site.join(*TOGETHER)
    site.registry.unreachable("talker:0")

    async def leave() -> None:
        stream = runs_of(site).submit(Ticket(), [5, 6, 7, 8], SamplingParams(max_tokens=60, seed=1))
        reading = asyncio.ensure_future(stream.all() if whole else asyncio.sleep(60))
        await asyncio.sleep(0)
        assert list(stream.run.requests) == ["thinker"] and site.ledger.entries
        reading.cancel()
        stream.cancel()

    asyncio.run(leave())
    assert site.idle and not site.ledger.entries and site.ledger.totals.requests == 1


def test_a_producer_of_two_streams_is_computed_again_once(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = StageSite(tokenizer)
    site.join(*TOGETHER, "thinker:1")
    stream = runs_of(site).submit(Ticket(), [5, 6, 7, 8], SamplingParams(max_tokens=60, seed=1))
    stream.run.requests["talker"].mailbox.close(Finished("stop", Usage(0, 0, 0), ""))
    monkeypatch.setattr(run, "inputs_of", lambda graph, stage: 2 * inputs_of(graph, stage))
    runs_of(site).conductor.replay(stream.run, "talker")
    assert stream.run.first.attempts.number == 1
    stream.cancel()
