# SPDX-License-Identifier: Apache-2.0
"""The queue of the proxy: no request is lost in it, and none is admitted that cannot be served in time."""

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from pontil.runtime.accounting.counts import Usage
from pontil.runtime.errors import RequestError, Unavailable
from pontil.runtime.proxy.admission.request_queue import ADMITTED_SHARE, MOST_WAITING_TOKENS, RequestQueue
from pontil.runtime.proxy.fleet.service_rate import Seats
from pontil.runtime.proxy.requests.generation import Generation
from pontil.runtime.proxy.requests.request import Request
from pontil.runtime.proxy.requests.ticket import Ticket
from pontil.runtime.proxy.routing.policy import TURN_TOKENS
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.tokenizer.tokenizer import Tokenizer

DEADLINE = 10.0
PARAMS = SamplingParams(max_tokens=20, seed=1)


def prompt_of(tokens: int) -> Generation:
    return Generation([5] * tokens, PARAMS)


def queue(free: int = 8) -> RequestQueue:
    return RequestQueue(DEADLINE, lambda: Seats(free, 8), jitter=lambda: 0.0)


def request(tokenizer: Tokenizer, number: int, tokens: int, n: int = 1) -> Request:
    params = SamplingParams(max_tokens=20, seed=1, n=n)
    return Request.start(f"r{number}", Generation([5] * tokens, params), tokenizer, 0.0)


def measured(tokenizer: Tokenizer, tokens: int = 1_000) -> RequestQueue:
    """Return a queue that has measured one prompt of so many tokens computed in a second."""
    made, first = queue(), request(tokenizer, -1, tokens)
    made.push(first, 0.0)
    made.serve(first, 0.0)
    made.started(first, 1.0)
    made.drop(first, 1.0)
    assert made.rate.prompts.per_second == pytest.approx(tokens)
    return made


def test_nobody_is_refused_before_anything_is_known(tokenizer: Tokenizer) -> None:
    made = queue()
    made.push(request(tokenizer, 0, 500), 0.0)
    made.check([prompt_of(100_000)], Ticket())


def test_a_wait_that_is_too_long_is_refused_with_the_time_after_which_it_is_not(tokenizer: Tokenizer) -> None:
    made = measured(tokenizer)
    for number in range(6):
        made.check([prompt_of(1_000)], Ticket())
        made.push(request(tokenizer, number, 1_000), 1.0)
    # Six seconds of prompts are ahead: that is the limit.
    made.push(request(tokenizer, 6, 2_000), 1.0)
    with pytest.raises(Unavailable, match="about 8 s now, and up to 6 s are let in: try again in 2 s") as refused:
        made.check([prompt_of(1)], Ticket())
    assert refused.value.retry_after == pytest.approx(8.0 - ADMITTED_SHARE * DEADLINE)
    # Nothing is ahead of more urgent requests.
    made.check([prompt_of(1_000)], Ticket(place=-1))


def test_a_short_prompt_waits_for_turns_of_those_that_are_computed_and_not_for_their_ends(tokenizer: Tokenizer) -> None:
    made = measured(tokenizer)
    for number in range(3):
        made.push(one := request(tokenizer, number, 2_400), 1.0)
        made.serve(one, 1.0)
    made.push(request(tokenizer, 3, 100), 1.0)
    made.check([prompt_of(30)], Ticket())
    assert made.wait(Ticket(), 30) == pytest.approx((100 + 3 * TURN_TOKENS) / 1_000)
    assert made.wait(Ticket(), 1_000) == pytest.approx(3.1)
    with pytest.raises(Unavailable, match="about 7 s now"):
        made.check([prompt_of(2_400)], Ticket())


def test_where_nobody_waits_one_is_let_in_whatever_was_measured(tokenizer: Tokenizer) -> None:
    made = measured(tokenizer, tokens=1)
    slow = request(tokenizer, 0, 1_000)
    made.push(slow, 1.0)
    made.serve(slow, 1.0)
    made.check([prompt_of(1_000)], Ticket())


def test_prompts_that_together_take_too_long_are_a_mistake(tokenizer: Tokenizer) -> None:
    made = measured(tokenizer)
    made.check([prompt_of(9_000)], Ticket())
    made.check([prompt_of(20_000)], Ticket())
    with pytest.raises(RequestError, match="these 20 prompts together take about 20 s, and 10 s is the limit"):
        made.check([prompt_of(1_000)] * 20, Ticket())


def test_what_waits_is_bounded_in_memory(tokenizer: Tokenizer) -> None:
    made = queue()
    made.push(request(tokenizer, 0, 10), 0.0)
    with pytest.raises(Unavailable, match="too many prompts"):
        made.check([prompt_of(MOST_WAITING_TOKENS)], Ticket())


def test_those_that_cannot_be_served_in_time_are_let_go_but_the_next(tokenizer: Tokenizer) -> None:
    made = measured(tokenizer)
    waiting = [request(tokenizer, number, 4_000) for number in range(4)]
    for one in waiting:
        made.push(one, 1.0)
    # Turns come after 0, 4, 8 and 12 s, and 9 s are left.
    assert [one for one, _ in made.hopeless(1.0)] == waiting[3:]
    # At 3 s, 7 s are left: only the first two are in time. Without the third the fourth has its turn after 8 s: too
    # late.
    assert [one for one, _ in made.hopeless(3.0)] == waiting[2:]
    assert [one for one, _ in made.hopeless(11.0)] == waiting


def test_a_key_pays_for_what_was_computed_and_generated_and_not_for_what_was_cached(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tokens of an answer that was to have twenty, behind 1,000 of a prompt of which 900 were cached."""
    made, one = measured(tokenizer), request(tokenizer, 0, 1_000)
    monkeypatch.setattr(Request, "usage", Usage(1_000, 2, 900))
    begun = made.waiting.levels[0].begin("-")
    made.push(one, 1.0)
    made.serve(one, 1.0)
    made.started(one, 2.0)
    made.drop(one, 3.0)
    assert made.waiting.levels[0].begin("-") - begun == pytest.approx(100 + 2)


@settings(max_examples=examples(40, 200), deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["push", "pop", "advance", "start", "drop"]), st.integers(0, 30)), max_size=60)
)
def test_sums_are_those_of_what_is_there(tokenizer: Tokenizer, moves: list[tuple[str, int]]) -> None:
    made, now = queue(), 0.0
    waiting, sent, uncomputed = list[Request](), list[Request](), dict[str, int]()
    for number, (move, pick) in enumerate(moves):
        now += 0.1
        if move == "push":
            waiting.append(request(tokenizer, number, pick + 1, 1 + pick % 3))
            made.push(waiting[-1], now)
        elif move == "pop" and waiting:
            one = next(made.waiting.heads())
            made.serve(one, now)
            waiting.remove(one)
            sent.append(one)
            uncomputed[one.id] = len(one.prompt)
        elif move in ("advance", "start") and sent:
            one = sent[pick % len(sent)]
            left = uncomputed.pop(one.id, 0)
            if move == "start":
                made.started(one, now)
            else:
                made.advanced(one, pick, now)
                uncomputed |= {one.id: max(0, left - pick)} if one.id in made.uncomputed else {}
        elif move == "drop" and (waiting or sent):
            some = waiting + sent
            one = some[pick % len(some)]
            made.drop(one, now)
            (waiting if one in waiting else sent).remove(one)
            uncomputed.pop(one.id, None)
        assert list(made) == waiting and made.costs.keys() == {one.id for one in waiting}
        assert made.tokens == sum(len(one.prompt) for one in waiting)
        assert made.choices == sum(one.params.n for one in waiting)
        assert made.cost == pytest.approx(sum(made.costs.values()))
        assert made.sent.keys() == {one.id for one in sent} and made.rate.running == len(sent)
        assert made.uncomputed == uncomputed and made.to_compute == sum(uncomputed.values())
