# SPDX-License-Identifier: Apache-2.0
"""Runs whose prompts have media: a stage before the first makes rows of them."""

from dataclasses import replace

import pytest
from effort import is_long
from heard_runs import PARAMS, PROMPT, SERVING, SPLIT, TOGETHER, expected, nothing_is_left, site_of, submit
from stage_site import MEDIA, StageSite

from pontil.runtime.accounting.counts import Usage
from pontil.runtime.errors import RequestError, Unavailable
from pontil.runtime.proxy.requests.answer import Delta
from pontil.runtime.proxy.requests.stream import Stream
from pontil.runtime.proxy.requests.ticket import Ticket
from pontil.runtime.stages.runs.entry import runs_of
from pontil.runtime.tokenizer.tokenizer import Tokenizer

EYES = ("eyes:0", "eyes:1")


def said(stream: Stream, choices: int) -> list[list[int]]:
    """Return the ids of each choice."""
    found: list[list[int]] = [[] for _ in range(choices)]
    for number, event in stream.drain():
        if isinstance(event, Delta):
            found[number] += event.ids
    return found


@pytest.mark.parametrize("choices", [0, 1, 3])
@pytest.mark.parametrize("workers", [TOGETHER, SPLIT])
def test_rows_of_media_are_there_whoever_is_lost(tokenizer: Tokenizer, workers: tuple[str, ...], choices: int) -> None:
    """E15: the stage before the first one is lost, or any other, at any moment; or both of them at once. In sound, or
    in so many choices of text, whose prompt counts once."""
    aloud, params = not choices, replace(PARAMS, n=max(1, choices))

    def begun() -> tuple[StageSite, Stream]:
        site = site_of(tokenizer, *workers, *EYES, max_attempts=6)
        if aloud:
            return site, submit(site, media=MEDIA).stream
        return site, runs_of(site).admit(Ticket(), runs_of(site).answer(PROMPT, params, {}, MEDIA))

    site, stream = begun()
    site.run_until_idle()
    length, right = site.steps, site.released
    assert {name for name, _ in right} >= {"eyes:0"}
    first = [name for name in SERVING[workers] if name.startswith("thinker")]
    victims = [(name,) for name in (*SERVING[workers], "eyes:0") if aloud or not name.startswith(("talker", "wav"))]
    ids = expected(site.count)[0]
    for lost in (*victims, *(("eyes:0", name) for name in first)):
        for moment in range(0, length + 1, 1 if is_long() else 3):
            site, stream = begun()
            for _ in range(moment):
                site.step()
            for name in lost:
                site.kill(name, 5)
            site.run_until_idle()
            site.step()
            found = said(stream, params.n)
            assert stream.error is None
            if choices:
                assert found == [ids] * choices and stream.final_usage == Usage(len(PROMPT), choices * len(ids), 0)
            nothing_is_left(site)


def test_a_run_with_media_needs_their_stage_and_has_one_choice_in_sound(tokenizer: Tokenizer) -> None:
    site = site_of(tokenizer)
    with pytest.raises(Unavailable, match="no worker of the stage eyes"):
        runs_of(site).answer(PROMPT, PARAMS, {}, MEDIA)
    site.join(*EYES)
    with pytest.raises(RequestError, match="n is 2"):
        runs_of(site).submit(Ticket(), PROMPT, replace(PARAMS, n=2), {}, MEDIA)
    assert site.idle
