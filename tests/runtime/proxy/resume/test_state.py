# SPDX-License-Identifier: Apache-2.0
"""A request that is made of its record is the one that was recorded, wherever its tokens were cut."""

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pontil.runtime.accounting.ledger import Ledger
from pontil.runtime.errors import RequestError
from pontil.runtime.proxy.requests.answer import Delta
from pontil.runtime.proxy.requests.generation import Generation, submits
from pontil.runtime.proxy.requests.request import Request
from pontil.runtime.proxy.requests.ticket import ChosenAdapter, Ticket
from pontil.runtime.proxy.resume.retold_text import PART, RetoldText, recorded_ids
from pontil.runtime.proxy.resume.state import head_of, label_of, restored, rewind, state_of
from pontil.runtime.proxy.routing.policy import Route, WorkerLoad
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.tokenizer.detokenizer import Detokenizer
from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.wire.messages import Tokens

TEXT = "Grüße 😀👩‍🚀 and <stop>, more of it: ünïcödé — <st op> <stop> end"
WORKER = WorkerLoad("w", "mixed:0", "mixed", "e", in_flight=0, free_blocks=10, seats=4, context=1000)


def begun(tokenizer: Tokenizer, **fields: Any) -> tuple[Request, Ledger]:
    params = SamplingParams(**({"max_tokens": 200, "seed": 1} | fields))
    ledger = Ledger()
    request = Request.start(
        "name-1",
        Generation([1, 2, 3], params),
        tokenizer,
        1.0,
        Ticket(caller="ann", place=-2, cache_salt="salt"),
        ledger,
    )
    request.begin(Route.alone(WORKER), 2.0)
    return request, ledger


def heard(request: Request, index: int, ids: list[int], **fields: Any) -> None:
    counts: dict[str, Any] = {"prompt_tokens": 3, "cached_tokens": 1, "computed_tokens": 2} if index == 0 else {}
    request.accept(Tokens("w", "p", request.id, request.attempts.number, index, ids, **counts, **fields), 3.0 + index)


def text_of(said: list[Any]) -> str:
    return "".join(one.text for one in said if isinstance(one, Delta))


@given(
    cuts=st.lists(st.integers(1, 9), min_size=1), stops=st.booleans(), early=st.integers(0, 30), after=st.integers(0, 9)
)
def test_the_text_is_the_same_however_the_tokens_came(
    tokenizer: Tokenizer, cuts: list[int], stops: bool, early: int, after: int
) -> None:  # fmt: skip
    ids = tokenizer.encode(TEXT, False)
    fields = {"stop": ["<stop>"], "min_tokens": early} if stops else {}
    request, _ = begun(tokenizer, **fields)
    lines, told, written, index = [head_of(request)], "", [0], 0
    for number, count in enumerate(cuts):
        part = ids[index : index + count]
        if not part:
            break
        heard(request, index, part)
        told, index = told + text_of(request.mailbox.drain()), index + len(part)
        if number % 2:
            lines.append(state_of(request, written, "p"))
            written = [len(request.answers[0].ids)]
    lines.append(state_of(request, written, "p"))
    made = restored(json.loads(json.dumps(lines)), tokenizer, Ledger(), 9.0)
    assert text_of(made.mailbox.drain()) == told and made.answers[0].ids == request.answers[0].ids
    rewind(request, tokenizer)
    assert text_of(request.mailbox.drain()) == told
    # Both go on with the same text, at another worker's hands or at the same.
    made.begin(Route.alone(WORKER), 10.0)
    more = ids[index : index + 1 + after]
    for one in (request, made):
        if more:
            one.accept(Tokens("w", "p", one.id, one.attempts.number, index, more, prompt_tokens=3), 11.0)
    assert text_of(request.mailbox.drain()) == text_of(made.mailbox.drain())


def test_the_books_go_on(tokenizer: Tokenizer) -> None:  # A11
    request, _ = begun(tokenizer, n=2, max_tokens=6)
    heard(request, 0, [10, 11, 12])
    heard(request, 0, [20, 21], choice=1, finish_reason="stop", generated_tokens=2)
    lines = json.loads(json.dumps([head_of(request), state_of(request, [0, 0], "first")]))
    ledger = Ledger()
    made = restored(lines, tokenizer, ledger, 9.0)
    entry = made.entry
    assert (entry.generated, entry.delivered, made.usage) == (5, 5, request.usage) and entry.imbalance == 0
    assert (made.ticket.caller, made.ticket.place) == ("ann", -2) and made.times.arrived == 1.0 and made.times.begun
    assert entry.by_worker() == {(0, "w"): ("whole", 5, 2)} and entry.elsewhere == {(0, "w"): "first"}
    made.begin(Route.alone(WORKER), 10.0)
    (submit,) = submits(made, "second")
    assert (submit.attempt, submit.delivered, submit.choices) == (1, [[10, 11, 12], [20, 21]], [0])
    last = Tokens("w", "p", made.id, 1, 3, [13, 14, 15], finish_reason="length", generated_tokens=3, prompt_tokens=3)
    assert made.accept(last, 11.0) == 3 and made.complete
    closed = ledger.close(made.id, made.billed)
    assert made.billed.completion_tokens == 8 and made.billed.cached_tokens == 1
    assert closed.imbalance == 0 and ledger.imbalance == 0 and made.attempts.faults == 1


def test_the_start_of_an_adapter_stays_where_the_prompt_has_it(tokenizer: Tokenizer) -> None:
    """The answer has the tokens that activate it once more, and another worker computes it as a prompt; so does one
    that another proxy sends."""
    adapter = ChosenAdapter("late", "5a" * 32, "/late", (2, 3))
    request, _ = begun(tokenizer)
    request.ticket = replace(request.ticket, adapter=adapter)
    heard(request, 0, [10, 2, 3])
    again = submits(request, "first")
    lines = json.loads(json.dumps([head_of(request), state_of(request, [0], "first")]))
    request.broke(2.0)
    made = restored(lines, tokenizer, Ledger(), 9.0)
    assert made.ticket.adapter == adapter
    for one in (request, made):
        one.begin(Route.alone(WORKER), 10.0)
        again += submits(one, "second")
    assert [one.delivered for one in again] == [[], [[10, 2, 3]], [[10, 2, 3]]]
    assert {(one.adapter, one.adapter_start, one.adapter_directory) for one in again} == {("5a" * 32, 1, "/late")}
    # Older releases tell of no tokens.
    lines[0]["adapter"] = ["late", "5a" * 32, "/late"]
    assert restored(lines, tokenizer, None, 9.0).ticket.adapted([1, 2, 3]).start == 0


def test_a_request_that_comes_back_finds_its_own_shares(tokenizer: Tokenizer) -> None:
    request, ledger = begun(tokenizer)
    heard(request, 0, [10, 11])
    lines = json.loads(json.dumps([head_of(request), state_of(request, [0], "own")]))
    ledger.shut(request.id)
    made = restored(lines, tokenizer, ledger, 9.0)
    assert made.entry.shares[0, "w", 0] is request.entry.shares[0, "w", 0]
    ledger.stray("w", made.id, 0, 0, 2, 3)
    assert ledger.books["w"].heard == 5 and ledger.imbalance == 0


@pytest.mark.parametrize("spoilt", [{"params": 3}, {"prompt": None}, {"salt": 0, "params": {}}])
def test_a_damaged_record_leaves_nothing(tokenizer: Tokenizer, spoilt: dict[str, Any]) -> None:
    request, _ = begun(tokenizer)
    ledger = Ledger()
    with pytest.raises(RequestError, match="send the request again"):
        restored([head_of(request) | spoilt], tokenizer, ledger, 9.0)
    with pytest.raises(RequestError):
        restored([head_of(request), {"new": [[1]]}], tokenizer, ledger, 9.0)
    assert not ledger.entries


@pytest.mark.parametrize("stop", [(), ("zz",)])
def test_a_long_answer_is_told_again_in_parts(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, stop: tuple[str, ...]
) -> None:
    request, _ = begun(tokenizer, n=1, max_tokens=9 * PART, stop=stop)
    ids = [10 + number % 200 for number in range(8 * PART)]
    heard(request, 0, ids)
    lines = json.loads(json.dumps([head_of(request), state_of(request, [0], "p")]))
    told, sizes, add = text_of(request.mailbox.drain()), list[int](), Detokenizer.add

    def counted(self: Detokenizer, some: Iterable[int]) -> str:
        sizes.append(len(list(some)))
        return add(self, some)

    monkeypatch.setattr(Detokenizer, "add", counted)
    retold, turns = RetoldText(tokenizer, request.params), 1
    while retold.advance(recorded_ids(lines)[0]):
        turns += 1
    assert turns == 8 and max(sizes) <= PART
    sizes.clear()
    made = restored(lines, tokenizer, Ledger(), 9.0, [retold])
    assert sum(sizes) == 1, "the end alone is read in the turn in which the stream is taken up"
    assert text_of(made.mailbox.drain()) == told and made.answers[0].ids == ids
    restored(lines, None, Ledger(), 9.0)
    assert sum(sizes) == 1, "nobody reads the text of one that is settled"


def test_a_label_of_another_release_is_none() -> None:
    """Its request ends as one of a proxy that died."""
    assert [label_of({"left": one}) for one in ("error", "cancelled", "x", 7)] == ["error", "cancelled", None, None]
