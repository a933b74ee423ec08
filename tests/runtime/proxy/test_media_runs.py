# SPDX-License-Identifier: Apache-2.0
"""Runs whose prompts have media: a stage before the first makes rows of them."""

import pytest
from effort import is_long
from heard_runs import PARAMS, PROMPT, SERVING, SPLIT, TOGETHER, expected, nothing_is_left, site_of, submit
from stage_site import MEDIA, StageSite

from pontil.runtime.errors import RequestError, Unavailable
from pontil.runtime.proxy.requests.answer import Delta
from pontil.runtime.proxy.requests.stream import Stream
from pontil.runtime.proxy.requests.ticket import Ticket
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.stages.runs.entry import runs_of
from pontil.runtime.tokenizer.tokenizer import Tokenizer

EYES = ("eyes:0", "eyes:1")


@pytest.mark.parametrize("aloud", [True, False])
@pytest.mark.parametrize("workers", [TOGETHER, SPLIT])
def test_rows_of_media_are_there_whoever_is_lost(tokenizer: Tokenizer, workers: tuple[str, ...], aloud: bool) -> None:
    """E15: the stage before the first one is lost, or any other, at any moment; or both of them at once."""

    def begun() -> tuple[StageSite, Stream]:
        site = site_of(tokenizer, *workers, *EYES, max_attempts=6)
        if aloud:
            return site, submit(site, media=MEDIA).stream
        return site, runs_of(site).answer(Ticket(), PROMPT, PARAMS, {}, MEDIA)

    site, stream = begun()
    site.run_until_idle()
    length, right = site.steps, site.released
    assert {name for name, _ in right} >= {"eyes:0"}
    first = [name for name in SERVING[workers] if name.startswith("thinker")]
    victims = [(name,) for name in (*SERVING[workers], "eyes:0") if aloud or not name.startswith(("talker", "wav"))]
    for lost in (*victims, *(("eyes:0", name) for name in first)):
        for moment in range(0, length + 1, 1 if is_long() else 3):
            site, stream = begun()
            for _ in range(moment):
                site.step()
            for name in lost:
                site.kill(name, 5)
            site.run_until_idle()
            site.step()
            said = [token for _, event in stream.drain() if isinstance(event, Delta) for token in event.ids]
            assert stream.error is None and (aloud or said == expected(site.count)[0])
            nothing_is_left(site)


def test_a_run_with_media_needs_their_stage_and_has_one_choice(tokenizer: Tokenizer) -> None:
    site = site_of(tokenizer)
    with pytest.raises(Unavailable, match="no worker of the stage eyes"):
        runs_of(site).answer(Ticket(), PROMPT, PARAMS, {}, MEDIA)
    with pytest.raises(RequestError, match="n is 2"):
        runs_of(site).answer(Ticket(), PROMPT, SamplingParams(max_tokens=4, seed=1, n=2), {}, MEDIA)
    assert site.idle
