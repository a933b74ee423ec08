# SPDX-License-Identifier: Apache-2.0
"""Runs that another proxy goes on with, as the clients of their streams came back there: from any moment on, with the
same tokens, billed once."""

import json

import pytest
from heard_runs import PARAMS, PROMPT, SPLIT, TOGETHER, expected, nothing_is_left, site_of
from stage_site import MEDIA as PICTURE
from stage_site import StageSite

from pontil.runtime.accounting.counts import Usage
from pontil.runtime.proxy.requests.ticket import Ticket
from pontil.runtime.proxy.resume.state import head_of, restored, state_of
from pontil.runtime.stages.graph.medium import ENCODER, MEDIA, NAMES, Medium, stated_media
from pontil.runtime.stages.runs.entry import runs_of
from pontil.runtime.stages.runs.run import StageRun
from pontil.runtime.tokenizer.tokenizer import Tokenizer

DIGEST = "ab" * 32
SHOWN = {MEDIA: [Medium("audio", 1, len(PICTURE)).to_wire()], NAMES: [[0, DIGEST]]}


def site_with(tokenizer: Tokenizer, workers: tuple[str, ...], eyes: str = "eyes:0") -> tuple[StageSite, StageRun]:
    site = site_of(tokenizer, *workers, eyes)
    return site, runs_of(site).answer(PROMPT, PARAMS, SHOWN, PICTURE)


@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("workers", [TOGETHER, SPLIT])
def test_it_goes_on_from_any_moment(tokenizer: Tokenizer, workers: tuple[str, ...], begins: bool) -> None:
    """`begins`: its reader has a part of the answer, and is billed that."""
    moments, site = 0, site_with(tokenizer, workers)[0]
    ids = expected(site.count)[0]
    while True:
        one, work = site_with(tokenizer, workers)
        stream = runs_of(one).admit(Ticket(), work)
        stream.expect_whole()
        for _ in range(moments):
            one.step()
        if stream.end is not None:
            break
        if begins:
            stream.begin()
        request = stream.request
        lines = json.loads(json.dumps([head_of(request), state_of(request, [0], one.incarnation)]))
        one.in_flight.hand_over(request)
        one.run_until_idle()
        one.step()
        nothing_is_left(one)
        two, again = site_with(tokenizer, workers, "eyes:1")
        made = restored(lines, tokenizer, two.books.ledger, two.now, again=again)
        two.in_flight.take_over(made)
        assert isinstance(made.work, StageRun) and made.work.run is not None
        # Workers may still know the first one.
        assert moments == 0 or made.work.run.id != request.id
        two.run_until_idle()
        two.step()
        assert made.answers[0].ids == ids and made.complete and made.billed == Usage(len(PROMPT), len(ids), 0)
        assert two.books.ledger.imbalance == 0
        nothing_is_left(two)
        moments += 1
    assert moments > len(ids)


def test_it_is_the_prompt_that_was_begun(tokenizer: Tokenizer) -> None:
    """The template may tell another time, and the encoder may be another one: rows are asked for as they were."""
    one, work = site_with(tokenizer, TOGETHER)
    request = runs_of(one).admit(Ticket(), work).request
    lines = json.loads(json.dumps([head_of(request), state_of(request, [0], one.incarnation)]))
    assert lines[0]["stated"] == stated_media(work.options) and lines[0]["stated"]["media"][0]["digest"] == DIGEST
    two = site_of(tokenizer, *TOGETHER)
    two.join("eyes:2", model_fingerprint="a later one")
    again = runs_of(two).answer([9, *PROMPT], PARAMS, SHOWN | {NAMES: [[1, DIGEST]]}, PICTURE)
    made = restored(lines, tokenizer, two.books.ledger, two.now, again=again).work
    assert isinstance(made, StageRun) and made.prompt == PROMPT and made.given == again.given
    assert made.options[NAMES] == [[0, DIGEST]] and made.options[ENCODER] == work.options[ENCODER]
    assert made.options[ENCODER] != again.options[ENCODER]
