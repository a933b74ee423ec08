# SPDX-License-Identifier: Apache-2.0
"""The state of a request as lines of a record, and a request made of them again.

All of a request follows from its prompt, parameters and the ids that are accepted: the text is made anew. What another
proxy's attempts generated stays in that one's books; this one's entry repeats it, so that the request's row is whole.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pontil.runtime.accounting.counts import WHOLE, Usage
from pontil.runtime.accounting.ledger import Ledger
from pontil.runtime.errors import MalformedFrame, RequestError
from pontil.runtime.proxy.admission.in_flight import FAILED, LEFT
from pontil.runtime.proxy.fleet.worker_release import WorkerRelease
from pontil.runtime.proxy.requests.answer import Choice, Delta, Ended, Finished
from pontil.runtime.proxy.requests.generation import Generation, PromptWork
from pontil.runtime.proxy.requests.request import NO_TICKET, Request, Work
from pontil.runtime.proxy.requests.ticket import ChosenAdapter, Ticket
from pontil.runtime.proxy.resume.retold_text import RetoldText, recorded_ids
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.tokenizer.tokenizer import Tokenizer

# The part of a record's head about what stands in the prompt beside ids.
STATED = "stated"


@dataclass(frozen=True, slots=True)
class RecordedEnd:
    """The end of a request: what was billed, its label in the usage log, and the proxy that writes the row."""

    usage: Usage
    finish: str
    owner: str


def stated_by(work: Work) -> dict[str, Any]:
    """Return what stands in a work's prompt beside ids; nothing for one that has none."""
    return dict(work.stated) if isinstance(work, PromptWork) else {}


def head_of(request: Request) -> dict[str, Any]:
    """Return the part of a request that never changes."""
    return {
        STATED: stated_by(request.work),
        "request": request.id,
        "prompt": request.prompt,
        "params": request.params.to_wire(),
        "salt": request.ticket.cache_salt,
        "adapter": stated_adapter(request.ticket.adapter),
        "priority": request.ticket.place,
        "caller": request.ticket.caller,
        "arrived": request.times.arrived,
    } | ({} if request.work.group is None else {"model": request.work.group})


def stated_adapter(adapter: ChosenAdapter | None) -> list[Any] | None:
    if adapter is None:
        return None
    activated_by = [list(adapter.invocation)] if adapter.invocation else []
    return [adapter.name, adapter.digest, adapter.directory, *activated_by]


def state_of(request: Request, written: Sequence[int], incarnation: str) -> dict[str, Any]:
    """Return the changing part. Of the ids of each choice only those after the `written` ones are in it."""
    entry, cached_by = request.entry, request.account.cached_by
    shares: dict[tuple[int, str], list[Any]] = {}
    for (attempt, worker, _), share in entry.shares.items():
        proxy = entry.elsewhere.get((attempt, worker), incarnation)
        row = shares.setdefault((attempt, worker), [attempt, worker, share.phase, 0, share.cached, None, proxy])
        row[3] += share.booked
        if share.computed is not None:
            row[4], row[5] = share.cached, (row[5] or 0) + share.computed
    return {
        "attempt": request.attempts.number,
        "new": [answer.ids[count:] for answer, count in zip(request.answers, written, strict=True)],
        "chains": [answer.chain.hex() for answer in request.answers] if request.params.top_logits else [],
        "reasons": {
            str(choice): [reason, request.answers[choice].stop_match] for choice, reason in request.reasons.items()
        },
        "cached": request.account.cached if any(cached_by.values()) else None,
        "stated": entry.prompt_stated,
        "delivered": entry.delivered,
        "discarded": entry.discarded,
        "shares": list(shares.values()),
        "times": [request.times.queued, request.times.first_token],
        "drafts": [request.reports.drafted, request.reports.accepted],
        "release": None if request.release is None else [request.release.revision, request.release.version],
    }


def adapter_of(head: Mapping[str, Any]) -> ChosenAdapter | None:
    """Return the adapter that a record's request asked for; None where it asked for none."""
    if (named := head.get("adapter")) is None:
        return None
    name, digest, directory, *more = named
    return ChosenAdapter(name, digest, directory, tuple(more[0]) if more else ())


def release_of(line: Mapping[str, Any]) -> WorkerRelease | None:
    """Return the release that a line's request stays with."""
    release = line.get("release")
    return None if release is None else WorkerRelease(*release)


def end_of(line: Mapping[str, Any]) -> RecordedEnd | None:
    """Return the end that a line states, if it does."""
    end = line.get("end")
    return None if end is None else RecordedEnd(Usage(*end["usage"]), end["finish"], str(end.get("owner", "")))


def with_end(line: dict[str, Any], usage: Usage, finish: str, owner: str) -> dict[str, Any]:
    counts = [usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens]
    return line | {"end": {"usage": counts, "finish": finish, "owner": owner}}


def with_label(line: dict[str, Any], label: str) -> dict[str, Any]:
    """Return a line whose request its proxy has let go of, with all that was delivered: so it ends if nobody goes
    on."""
    return line | {"left": label}


def label_of(line: Mapping[str, Any]) -> str | None:
    """Return how the request ends that a proxy let go of last; None if one that took it up has died since, and for a
    label of another release."""
    label = line.get("left")
    return label if label in (FAILED, LEFT) else None


def held(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same state, as that of a request which a proxy has taken up, to follow it in the record."""
    return {key: value for key, value in line.items() if key != "left"} | {"new": [[] for _ in line.get("new", ())]}


def owned_by(line: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """Return the same end, as that of a proxy that took it over, to follow it in the record."""
    return {**line, "new": [[] for _ in line["new"]], "end": {**line["end"], "owner": owner}}


def restored(
    lines: Sequence[Mapping[str, Any]],
    tokenizer: Tokenizer | None,
    ledger: Ledger | None,
    now: float,
    retold: Sequence[RetoldText] = (),
    ticket: Ticket = NO_TICKET,
    again: PromptWork | None = None,
) -> Request:
    """Make the request of a record's lines. With a `ledger` its entry is opened there, with the shares of a time when
    the request was this proxy's before. Its mailbox has all of the answer so far, of whose texts those `retold` are
    begun; without a tokenizer the ids alone. `ticket` is its new reader's, and `again` the work that was read from the
    body again, if it is to be computed on. Raises RequestError for lines that are none."""
    head, states = lines[0], lines[1:]
    before = None if ledger is None else ledger.closed.pop(str(head.get("request")), None)
    try:
        begun = Generation(head["prompt"], SamplingParams.from_wire(head["params"]), further=head.get("model"))
        request = Request.start(
            head["request"],
            begun if again is None else again.as_begun(begun, head.get(STATED, {})),
            tokenizer,
            now,
            replace(
                ticket, caller=head["caller"], place=head["priority"], cache_salt=head["salt"], adapter=adapter_of(head)
            ),
            ledger,
        )
        request.times.arrived = head["arrived"]
        if states:
            ids = [choice_ids for choice_ids, _ in zip(recorded_ids(lines), request.answers, strict=True)]
            take_state(request, ids, states[-1], retold or fresh_texts(request, tokenizer))
        if before is not None:
            request.entry.shares |= before.shares
    except (KeyError, TypeError, ValueError, MalformedFrame) as error:
        if ledger is not None:
            ledger.entries.pop(str(head.get("request")), None)
        raise RequestError(f"the record of this stream cannot be read ({error}): send the request again") from None
    return request


def take_state(
    request: Request, ids: Sequence[list[int]], state: Mapping[str, Any], retold: Sequence[RetoldText]
) -> None:
    attempt = request.attempts.number = state["attempt"]
    request.attempts.excused = attempt + 1
    for choice, (reason, match) in state["reasons"].items():
        request.answers[int(choice)].reason, request.answers[int(choice)].stop_match = reason, match
    request.times.queued, request.times.first_token = state["times"]
    request.reports.drafted, request.reports.accepted = state["drafts"]
    request.times.begun, request.release = any(ids), release_of(state)
    account, entry = request.account, request.entry
    if attempt >= 0:
        account.open(attempt, ())
        account.died(attempt)
        for choice, choice_ids in enumerate(ids):
            account.choices[choice].attempts[attempt].accepted = len(choice_ids)
        if state["cached"] is not None:
            account.cached_by[attempt][WHOLE] = state["cached"]
    entry.prompt_stated = state["stated"]
    entry.delivered, entry.discarded = state["delivered"], dict(state["discarded"])
    for share in state["shares"]:
        entry.take_over(*share)
    triples = zip(request.answers, ids, retold, strict=True)
    request.answers = tuple(told_again(request, choice, choice_ids, text) for choice, choice_ids, text in triples)
    for answer, chain in zip(request.answers, state.get("chains", ()), strict=False):
        answer.chain = bytes.fromhex(chain)
    if (end := end_of(state)) is not None:
        request.mailbox.end = Finished(request.reasons[0], end.usage, request.attempts.route_name)


def rewind(request: Request, tokenizer: Tokenizer, retold: Sequence[RetoldText] = ()) -> None:
    """Put all of the answer so far into the mailbox again, for a reader that begins anew."""
    texts = retold or fresh_texts(request, tokenizer)
    for choice in request.answers:
        told_again(request, choice, choice.ids, texts[choice.number])


def fresh_texts(request: Request, tokenizer: Tokenizer | None) -> list[RetoldText]:
    return [RetoldText(tokenizer, request.params, choice.number) for choice in request.answers]


def told_again(request: Request, choice: Choice, ids: Sequence[int], retold: RetoldText) -> Choice:
    """Put a choice's answer so far into the mailbox, whatever is there; return the choice as it was made again."""
    fresh, number = retold.fresh, choice.number
    text = retold.finish(ids, choice.reason, choice.stop_match)
    shown = choice.shown(ids, choice.reason, choice.stop_match)
    request.mailbox.deltas.pop(number, None)
    if shown or text:
        request.mailbox.deltas[number] = Delta(text, list(shown), number, [])
    if choice.reason is not None:
        request.mailbox.ended[number] = Ended(number, choice.reason, fresh.stop_reason)
    return fresh
