# SPDX-License-Identifier: Apache-2.0
"""The requests of a record, sent again to a running server: to whatever serves them, or to workers of one revision that
need not serve yet."""

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pontil.launcher.foundation.errors import LaunchError, OptionError

if TYPE_CHECKING:
    from pontil.runtime.receipts.comparison import AnswerDifference
    from pontil.runtime.receipts.record import Record, RecordedAnswer, RecordedRequest

MOST_BYTES = 1 << 28
MOST_ANSWER = 1 << 26
# Seconds for an answer that says what the server is.
TIMEOUT = 10.0
# Roles whose workers generate.
TEXT_ROLES = ("proxy", "embed", "rerank", "node")


@dataclass(frozen=True, slots=True)
class ReplayTarget:
    """The server, and the key to show it; of its workers only the named ones are asked, each in turn. They serve the
    `model`, if that is not of the record's name."""

    url: str
    key: Mapping[str, str]
    workers: Sequence[str] = ()
    model: str | None = None


@dataclass(frozen=True, slots=True)
class ReplayedRequest:
    """The outcome for one request at one worker, or at any: where each choice differs first."""

    request: "RecordedRequest"
    worker: str | None
    differences: Sequence[tuple[int, "AnswerDifference"]]

    @property
    def is_comparable(self) -> bool:
        """Return whether it is of its worker's model, and of the adapter with which it was recorded, so that it tells
        something of its worker."""
        from pontil.runtime.receipts.comparison import INCOMPARABLE

        return all(difference.kind not in INCOMPARABLE for _, difference in self.differences)

    @property
    def lines(self) -> Iterator[str]:
        at = "" if self.worker is None else f" at {self.worker}"
        for choice, difference in self.differences:
            which = f", choice {choice}" if len(self.request.answers) > 1 else ""
            yield f"request {self.request.number} ({self.request.path}{which}){at}: {difference.text}"

    def to_json(self) -> list[dict[str, Any]]:
        at = {"request": self.request.number, "path": self.request.path, "worker": self.worker}
        return [at | {"choice": choice} | difference.to_json() for choice, difference in self.differences]


@dataclass(slots=True)
class ReplayOutcome:
    """The outcomes of all requests that were sent, in their order; `skipped` ones have digests alone. `foreign` are the
    workers with another tokenizer."""

    skipped: int
    foreign: list[ReplayedRequest] = field(default_factory=list)
    replayed: list[ReplayedRequest] = field(default_factory=list)

    @property
    def different(self) -> list[ReplayedRequest]:
        return [one for one in (*self.foreign, *self.replayed) if one.differences]

    @property
    def comparable(self) -> list[ReplayedRequest]:
        return [one for one in self.replayed if one.is_comparable]

    @property
    def is_equal(self) -> bool:
        return not self.different

    @property
    def lines(self) -> list[str]:
        return [line for one in self.different for line in one.lines]

    @property
    def summary(self) -> str:
        comparable = self.comparable
        equal = sum(not one.differences for one in comparable)
        skipped = f"; {self.skipped} redacted ones cannot be sent again" if self.skipped else ""
        return f"{equal} of {len(comparable)} requests were answered as recorded{self.left_out}{skipped}"

    @property
    def left_out(self) -> str:
        """The number of those that could not be compared, with each reason; empty where there is none."""
        reasons = Counter(one.differences[0][1].text for one in self.replayed if not one.is_comparable)
        return "".join(f"; {count} cannot be compared, since {reason}" for reason, count in reasons.items())

    def untried(self, workers: Sequence[str]) -> list[str]:
        """Return those of the workers of which nothing could be compared."""
        tried = {one.worker for one in self.comparable}
        return [worker for worker in workers if worker not in tried]

    def to_json(self) -> dict[str, Any]:
        return {
            "equal": self.is_equal,
            "replayed": len(self.replayed),
            "incomparable": len(self.replayed) - len(self.comparable),
            "skipped": self.skipped,
            "differences": [difference for one in self.different for difference in one.to_json()],
        }


def load_record(path: Path, trusted: bytes | None = None) -> "Record":
    """Return the record in a file, of which some can be sent again. Raises OptionError."""
    from pontil.runtime.receipts.record import RecordError
    from pontil.runtime.receipts.signing import read_record

    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise OptionError(f"{path} is larger than {MOST_BYTES >> 20} MiB: record fewer requests.")
        record = read_record(data, trusted)
    except OSError as error:
        raise OptionError(f"{path} cannot be read ({error.strerror}): name a file that `pontil record` made.") from None
    except RecordError as error:
        raise OptionError(f"{path} cannot be replayed: {error}.") from None
    if not record.replayable:
        raise OptionError(f"{path} has digests alone ({len(record.requests)} requests): record without --redact.")
    return record


def worker_rows(url: str, key: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return what a server tells of its workers that generate. Raises OptionError for one that does not answer."""
    from pontil.launcher.foundation.server_client import fetch

    try:
        rows = fetch(url, "/admin/topology", TIMEOUT, key)["processes"]
        return [row for row in rows if "load" in row and row.get("role") not in TEXT_ROLES]
    except (LaunchError, KeyError, TypeError) as error:
        text = error.message if isinstance(error, LaunchError) else "it is no pontil"
        raise OptionError(f"{url} cannot be asked: {text.removesuffix('.')}.") from None


def workers_of(there: Sequence[Mapping[str, Any]], revision: str | None) -> list[str]:
    """Return the workers of a revision among these. Raises OptionError."""
    if revision is None:
        return []
    found = [str(row["name"]) for row in there if row.get("revision") == revision]
    if not found:
        known = ", ".join(sorted({str(row["revision"]) for row in there if row.get("revision")})) or "none"
        raise OptionError(f"No worker of the revision {revision!r} is there: the server has {known}.")
    return found


def replay(record: "Record", target: ReplayTarget, seconds: float, at_once: int) -> ReplayOutcome:
    """Send all that can be sent again, so many at once, and to each worker at least one that can be compared, if there
    is any. What has no answer within the time differs. Raises OptionError for a server that does not answer."""
    import asyncio

    requests = record.replayable
    deadline = time.monotonic() + seconds
    rows = worker_rows(target.url, target.key)
    outcome = ReplayOutcome(len(record.requests) - len(requests))

    async def all_of_them() -> None:
        room = asyncio.Semaphore(at_once)

        async def one(request: "RecordedRequest", worker: str | None) -> ReplayedRequest:
            async with room:
                differences = await asyncio.to_thread(differences_of, request, worker, target, deadline)
                return ReplayedRequest(request, worker, differences)

        outcome.replayed += await asyncio.gather(*(one(*job) for job in jobs_of(requests, target.workers or (None,))))
        outcome.replayed += await asyncio.gather(*(one(*job) for job in more_jobs(outcome, target.workers)))

    asyncio.run(all_of_them())
    outcome.foreign += foreign_tokenizers(outcome.comparable, rows)
    return outcome


def jobs_of(
    requests: Sequence["RecordedRequest"], workers: Sequence[str | None]
) -> Iterator[tuple["RecordedRequest", str | None]]:
    """Return which request is sent to which worker: each of both at least once, unless there is none of one of them."""
    count = max(len(requests), len(workers)) if requests and workers else 0
    return zip(islice(cycle(requests), count), islice(cycle(workers), count), strict=True)


def more_jobs(outcome: ReplayOutcome, workers: Sequence[str]) -> Iterator[tuple["RecordedRequest", str | None]]:
    """Return which other requests are sent to workers of which none could be compared: those that could at others."""
    sent = {(one.request.number, one.worker) for one in outcome.replayed}
    found = {one.request.number: one.request for one in outcome.comparable}
    pairs = [(request, worker) for worker in outcome.untried(workers) for request in found.values()]
    return iter([(request, worker) for request, worker in pairs if (request.number, worker) not in sent])


def foreign_tokenizers(
    replayed: Sequence[ReplayedRequest], rows: Sequence[Mapping[str, Any]]
) -> Iterator[ReplayedRequest]:
    """Yield a difference for each of the workers whose files have another tokenizer, where it tells: its proxy, which
    reads and writes all texts, has one of its own."""
    from pontil.runtime.receipts.comparison import tokenizer_difference

    of_worker = {one.worker: one.request for one in reversed(replayed)}
    for row in rows:
        request = of_worker.get(row.get("name"))
        if request is not None and isinstance(row.get("tokenizer"), str):
            difference = tokenizer_difference(request.answers[0], row["tokenizer"])
            if difference is not None:
                yield ReplayedRequest(request, str(row["name"]), [(0, difference)])


def differences_of(
    request: "RecordedRequest", worker: str | None, target: ReplayTarget, deadline: float
) -> list[tuple[int, "AnswerDifference"]]:
    """Send one request, and return where each choice differs first."""
    try:
        status, data = answer_to(request, worker, target, deadline)
    except LaunchError as error:
        return unanswered(error.message)
    return differences_in(request, status, data)


def unanswered(reason: str) -> list[tuple[int, "AnswerDifference"]]:
    from pontil.runtime.receipts.comparison import AnswerDifference, DifferenceKind

    return [(0, AnswerDifference(DifferenceKind.UNANSWERED, reason.removesuffix(".")))]


def differences_in(request: "RecordedRequest", status: int, data: bytes) -> list[tuple[int, "AnswerDifference"]]:
    """Return where each choice of an answer differs first."""
    from pontil.runtime.errors import OtherAdapter, OtherModel
    from pontil.runtime.receipts.comparison import AnswerDifference, DifferenceKind, first_difference
    from pontil.runtime.receipts.statement import ReceiptError

    if status == OtherAdapter.STATUS:
        return [(0, AnswerDifference(DifferenceKind.ADAPTER, sentence(data, status), None, request.adapter))]
    if status == OtherModel.STATUS:
        return [(0, AnswerDifference(DifferenceKind.MODEL, sentence(data, status)))]
    try:
        answers = answers_in(status, data)
        if len(answers) != len(request.answers):
            raise LaunchError(f"it has {len(answers)} answers, and {len(request.answers)} were recorded")
    except (LaunchError, ReceiptError) as error:
        return unanswered(error.message if isinstance(error, LaunchError) else str(error))
    pairs = enumerate(zip(request.answers, answers, strict=True))
    found = [(number, first_difference(expected, got)) for number, (expected, got) in pairs]
    return [(number, difference) for number, difference in found if difference is not None]


def answer_to(
    request: "RecordedRequest", worker: str | None, target: ReplayTarget, deadline: float
) -> tuple[int, bytes]:
    """Return the status and the body of the answer. Raises LaunchError for none in time."""
    from http.client import HTTPException

    from pontil.launcher.foundation.server_client import connect

    left = deadline - time.monotonic()
    if left <= 0:
        raise LaunchError("it was not answered in time")
    connection = connect(target.url, left)
    try:
        body = whole_body(request, target.model)
        connection.request("POST", request.path, body, {**headers_of(request, worker), **target.key})
        response = connection.getresponse()
        return response.status, response.read(MOST_ANSWER)
    except TimeoutError:
        raise LaunchError("it was not answered in time") from None
    except (OSError, HTTPException) as error:
        raise LaunchError(f"it was not answered ({error})") from None
    finally:
        connection.close()


def headers_of(request: "RecordedRequest", worker: str | None) -> dict[str, str]:
    """Return the headers by which a request is answered as it was, with a receipt."""
    circumstances = json.dumps({"seeds": request.seeds, "at": request.at, "worker": worker, "adapter": request.adapter})
    return {"content-type": "application/json", "pontil-receipt": "1", "pontil-replay": circumstances}


def answers_in(status: int, data: bytes) -> list["RecordedAnswer"]:
    """Return the choices in an answer. Raises LaunchError for an error, and ReceiptError for receipts that cannot be
    read."""
    from pontil.runtime.receipts.record import RecordedAnswer

    if status != 200:
        raise LaunchError(f"it was refused: {sentence(data, status)}")
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise LaunchError(f"it was not answered ({error})") from None
    receipts = answer.get("receipt") if isinstance(answer, dict) else None
    listed = receipts if isinstance(receipts, list) else [receipts]
    marks = answer.get("receipt_marks") if isinstance(answer, dict) else None
    if not isinstance(marks, list) or len(marks) != len(listed):
        raise LaunchError("its answer has no marks of logits: the server is of an earlier version")
    return [RecordedAnswer.from_json(one, mark) for one, mark in zip(listed, marks, strict=True)]


def whole_body(request: "RecordedRequest", model: str | None) -> bytes:
    """Return the body, for an answer in one piece that the server does not keep."""
    body = {name: value for name, value in (request.body or {}).items() if name != "stream_options"}
    if request.path == "/v1/responses":
        body["store"] = False
    return json.dumps(body | {"stream": False} | ({} if model is None else {"model": model})).encode()


def sentence(data: bytes, status: int) -> str:
    """Return what an error says, in each API's own shape."""
    try:
        error = json.loads(data)["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError, RecursionError):
        return f"status {status}"
