# SPDX-License-Identifier: Apache-2.0
"""The fast path for an ordinary row: less work than a frame, and the same result."""

from typing import Any

from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from pontil.runtime.accounting.ledger import Ledger
from pontil.runtime.proxy.requests.answer import BrokenAnswer
from pontil.runtime.proxy.requests.generation import Generation
from pontil.runtime.proxy.requests.request import Request
from pontil.runtime.proxy.routing.policy import Route, WorkerLoad
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.wire.codec import fits_a_row, frame_of, row_of
from pontil.runtime.wire.messages import Step, Tokens

P = WorkerLoad("p", "prefill:0", "prefill", "ipc:///p", 0, 64, 8, 512)
D = WorkerLoad("d", "decode:0", "decode", "ipc:///d", 0, 64, 8, 512)
PROMPT, BUDGET = [5, 6, 7], 6
# From here on ids are letters.
BASE = 68


@st.composite
def frames(draw: st.DrawFn) -> list[Tokens]:
    """Draw the frames of a pair that mostly continues, and sometimes repeats, skips, contradicts, adds fields or
    ends."""
    made, reached = [], {("p", 0): 0, ("p", 1): 0, ("d", 0): 0, ("d", 1): 0}
    for _ in range(draw(st.integers(0, 16))):
        sender, choice = draw(st.sampled_from(sorted(reached)))
        first = max(0, reached[sender, choice] + draw(st.sampled_from([0, 0, 0, 0, 0, 0, -1, 1])))
        end = first + draw(st.sampled_from([1, 1, 1, 1, 2, 0]))
        ids = [draw(st.sampled_from([BASE, BASE, BASE, BASE, 200, 2**31])) + place for place in range(first, end)]
        more: dict[str, Any] = draw(st.sampled_from([{}, {}, {}, {"finish_reason": "stop"}, {"generated_tokens": 2}]))
        stated = {"prompt_tokens": draw(st.sampled_from([3, 3, 3, 4, None])), "cached_tokens": 1}
        attempt = draw(st.sampled_from([0, 0, 0, 0, 1]))
        made.append(Tokens(sender, "proxy", "r", attempt, first, ids, choice, **(stated | more)))
        reached[sender, choice] = end
    return made


def started(tokenizer: Tokenizer, route: Route, params: SamplingParams) -> tuple[Request, Ledger]:
    ledger = Ledger()
    request = Request.start("r", Generation(PROMPT, params), tokenizer, 0.0, ledger=ledger)
    request.begin(route, 0.0)
    return request, ledger


def try_accept(request: Request, sender: str, row: list[int], now: float) -> bool:
    """Return whether the row's token path, if one is open, took it."""
    source = request.attempts.sources.get((sender, row[1]))
    return source is not None and source.try_accept(row, now)


def fed(request: Request, frame: Tokens, now: float, fast: bool) -> str:
    """Take a frame, or a row of a step, as the proxy does; return the outcome."""
    if request.mailbox.end is not None:
        return "late"
    if fast and frame.top_logits is None and fits_a_row(frame):
        step, row = Step(frame.sender, frame.receiver, ["r"], [row_of(frame)]), row_of(frame)
        if try_accept(request, frame.sender, row, now):
            return "taken"
        frame = frame_of(step, "r", row)
    if not request.attempts.expects(frame.sender, frame.attempt) or not request.is_sound(frame):
        return "stray"
    try:
        request.accept(frame, now)
    except BrokenAnswer:
        request.broke(now)
        assert request.attempts.route is not None
        request.begin(request.attempts.route, now)
        return "broken"
    return "taken"


def state(request: Request, ledger: Ledger) -> dict[str, Any]:
    """Return everything that an answer, a bill, the books and the next attempt depend on."""
    left_out = {"answers", "account", "entry", "mailbox", "attempts", "work", "recorder"}
    shown = {name: getattr(request, name) for name in request.__slots__ if name not in left_out}
    answers = [
        (answer.ids, answer.stops and answer.stops.held, answer.reason, answer.stop_match) for answer in request.answers
    ]
    tries = {name: getattr(request.attempts, name) for name in request.attempts.__slots__ if name != "sources"}
    counts = [(choice.attempts, choice.billed) for choice in request.account.choices]
    box, entry = request.mailbox, request.entry
    return shown | {
        "gaps": request.recorder.gaps.shown(0.0), "attempts": tries,
        "answers": answers, "counts": counts, "cached": request.account.cached_by, "books": ledger.books,
        "entry": (entry.shares, entry.delivered, entry.discarded, entry.prompt_stated, entry.imbalance),
        "mailbox": (box.deltas, box.ended, box.end), "imbalance": ledger.imbalance, "usage": request.usage,
    }  # fmt: skip


@settings(max_examples=examples(80, 400), deadline=None)
@given(frames(), st.booleans(), st.booleans(), st.sampled_from([None, 1]), st.integers(0, 3))
def test_rows_come_to_what_frames_come_to(
    tokenizer: Tokenizer, sent: list[Tokens], pair: bool, stops: bool, logprobs: int | None, least: int
) -> None:  # A5, A7, A11
    stop = (tokenizer.decode([BASE + 3, BASE + 4]),) if stops else ()
    params = SamplingParams(max_tokens=BUDGET, seed=1, n=2, stop=stop, logprobs=logprobs, min_tokens=least)
    route: Route = Route(P, D) if pair else Route.alone(D)
    (one, its), (other, others) = started(tokenizer, route, params), started(tokenizer, route, params)
    for number, frame in enumerate(sent):
        now = float(number)
        assert fed(one, frame, now, fast=False) == fed(other, frame, now, fast=True)
        assert state(one, its) == state(other, others)


def test_most_rows_of_an_answer_are_ordinary(tokenizer: Tokenizer) -> None:
    """Otherwise the test above would prove nothing, and each token would cost as much as a frame."""
    request, _ = started(tokenizer, Route.alone(D), SamplingParams(max_tokens=BUDGET, seed=1))
    rows = [[0, 0, index, 3, 0, BASE + index] for index in range(BUDGET)]
    ordinary = []
    for number, row in enumerate(rows):
        ordinary.append(try_accept(request, "d", row, 1.0))
        if not ordinary[-1]:
            request.accept(frame_of(Step("d", "proxy", ["r"], [row]), "r", row), float(number))
    assert ordinary == [False, *[True] * (BUDGET - 2), False], "the first row opens the path, the last ends the choice"
    assert not try_accept(request, "d", rows[1], 1.0) and request.mailbox.end is not None
