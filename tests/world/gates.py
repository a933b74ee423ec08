# SPDX-License-Identifier: Apache-2.0
"""A change with a gate, in a share of the seeds: an operator records what clients are answered, changes one worker, and
has the record sent to it before it serves. Every other time its new process has a wrong model.

Record and trial are HTTP; of the command only its connections are other ones here."""

import hashlib
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from connections import OPERATOR
from hash_model import TRIED
from http_reader import HttpReader
from operators import ENDS_WITHIN, LOOK, SCALE, ChangeClient, Operators, planned_roles
from receipt_clients import KEY
from request_connections import AnswerTaker, Dialer, PendingAnswer
from supervised_site import HostLaunch, SupervisedSite
from virtual_time import SeededWorld

from pontil.launcher.child.child_state import ChildState, DrainState
from pontil.launcher.options.worker_roles import GENERATING_ROLES
from pontil.launcher.receipts.gate import AT_ONCE, verdict_on
from pontil.launcher.receipts.replay import (
    ReplayedRequest,
    ReplayOutcome,
    differences_in,
    headers_of,
    jobs_of,
    more_jobs,
    unanswered,
    whole_body,
)
from pontil.runtime.receipts.comparison import DifferenceKind
from pontil.runtime.receipts.record import LEFT_OUT_LINE, Record, RecordedRequest, last_line
from pontil.runtime.receipts.signing import read_record

if TYPE_CHECKING:
    from seed_run import SeedRun

RESTART, UNDRAIN = "restart", "undrain"
KINDS = (RESTART, UNDRAIN, SCALE)
# Requests of a record; seconds for which it is made, from one try of it to the next, and how many there are.
MOST_RECORDED, RECORDED_FOR, AGAIN, MOST_TRIES = 6, 5.0, 1.0, 8
# Share of workers whose new process is wrong, and the seconds by which a record begins before the load.
PLANTED, BEFORE = 0.5, 1.0
# Seconds for a trial, until a request is drained, and from a change that is done to its way back.
TRIAL_SECONDS, DRAIN_TIMEOUT, KEPT_FOR = 20.0, 3.0, 2.0


class AdminCall(AnswerTaker):
    """One request of the operator over a connection of its own, and its answer: `ended` hears of it, or of None."""

    def __init__(
        self, dialer: Dialer, head: str, body: bytes, ended: Callable[[HttpReader | None], None],
        heard: Callable[[bytes], None] = lambda new: None,
    ) -> None:  # fmt: skip
        self.ended, self.heard = ended, heard
        self.pending: PendingAnswer | None = None
        connection = dialer.dial(OPERATOR)
        if connection is None:
            ended(None)
            return
        self.pending = connection.ask(self, f"{head}host: localhost\r\n\r\n".encode() + body)

    def leave(self) -> None:
        if self.pending is not None:
            pending, self.pending = self.pending, None
            pending.connection.leave(pending)

    # The parts of an AnswerTaker.

    def received(self, new: bytes) -> None:
        if self.pending is not None and self.pending.reader.status == 200:
            self.heard(new)

    def disconnected(self) -> None:
        if self.pending is not None:
            self.pending = None
            self.ended(None)

    def answered(self, reader: HttpReader) -> None:
        self.pending = None
        self.ended(reader)


class RecordWriter:
    """A record that is made while clients are served: `done` has it, or None if there is none in time."""

    def __init__(self, world: SeededWorld, dialer: Dialer, most: int, done: Callable[[Record | None], None]) -> None:
        self.world, self.dialer, self.most, self.done = world, dialer, most, done
        self.call: AdminCall | None = None
        self.data = b""
        self.tries = 0

    def begin(self) -> None:
        self.tries += 1
        self.data = b""
        self.call = AdminCall(self.dialer, "GET /admin/record?one_in=1 HTTP/1.1\r\n", b"", self.ended, self.heard)
        self.world.after(RECORDED_FOR, self.end, self.call)

    @property
    def lines(self) -> list[bytes]:
        whole = self.data[: self.data.rfind(b"\n") + 1].splitlines(keepends=True)
        return [line for line in whole if line.strip() and not line.startswith(LEFT_OUT_LINE)]

    def heard(self, new: bytes) -> None:
        self.data += new
        if len(self.lines) > self.most:
            self.end(self.call)

    def ended(self, reader: HttpReader | None) -> None:
        """Act on the end of the server's part: that of a proxy that leaves or dies, or a refusal."""
        if reader is not None and reader.status not in (200, 503):
            self.world.violate(f"a record is made: {reader.status} {bytes(reader.body)[:200]!r}")
        self.world.after(0.0, self.end, self.call)

    def end(self, call: AdminCall | None) -> None:
        if call is None or call is not self.call:
            return
        self.call = None
        call.leave()
        first, *requests = self.lines or [b""]
        if requests:
            requests = requests[: self.most]
            text = b"".join([first, *requests])
            self.done(read_record(text + last_line(len(requests), hashlib.sha256(text).hexdigest())))
        elif self.tries < MOST_TRIES:
            self.world.after(AGAIN, self.begin)
        else:
            self.done(None)


class WorkerTrial:
    """The record, sent to workers. `done` hears how they answered."""

    def __init__(
        self, world: SeededWorld, dialer: Dialer, record: Record, workers: list[str],
        done: Callable[[ReplayOutcome], None],
    ) -> None:  # fmt: skip
        self.world, self.dialer, self.workers, self.done = world, dialer, workers, done
        self.jobs = deque(jobs_of(record.replayable, workers))
        self.outcome = ReplayOutcome(0, [])
        self.calls: dict[int, AdminCall] = {}
        self.left, self.asked, self.is_again = len(self.jobs), 0, False
        world.after(TRIAL_SECONDS, self.give_up)
        for _ in range(AT_ONCE):
            self.send_next()

    def send_next(self) -> None:
        if not self.jobs:
            return
        request, worker = self.jobs.popleft()
        self.asked += 1
        body, number = whole_body(request, None), self.asked
        lines = headers_of(request, worker) | {
            "x-request-id": f"{TRIED}{number}-{worker}", "content-length": str(len(body)),
            "authorization": f"Bearer {KEY}",
        }  # fmt: skip
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        ended = partial(self.answered, number, request, worker)
        self.calls[number] = AdminCall(self.dialer, f"POST {request.path} HTTP/1.1\r\n{head}", body, ended)

    def answered(self, number: int, request: RecordedRequest, worker: str | None, reader: HttpReader | None) -> None:
        if reader is None:
            differences = unanswered("its connection ended")
        else:
            differences = differences_in(request, int(reader.status or 0), bytes(reader.body))
        self.calls.pop(number, None)
        self.outcome.replayed.append(ReplayedRequest(request, worker, differences))
        self.left -= 1
        self.send_next()
        if not self.left and not self.is_again:
            self.is_again = True
            self.jobs.extend(more_jobs(self.outcome, self.workers))
            self.left = len(self.jobs)
            for _ in range(AT_ONCE):
                self.send_next()
        if not self.left:
            self.done(self.outcome)

    def give_up(self) -> None:
        if self.left:
            self.left = 0
            for call in self.calls.values():
                call.leave()
            self.outcome.replayed.append(ReplayedRequest(EMPTY, None, unanswered("it was not answered in time")))
            self.done(self.outcome)


EMPTY = RecordedRequest("", 0, 0, "", "", None, ())


class GatedChange(ChangeClient):
    """The command that asked for a change with a gate, and judges the workers."""

    def __init__(
        self, world: SeededWorld, request: dict[str, Any], launch: HostLaunch, operator: "GateOperator"
    ) -> None:
        super().__init__(world, request, launch)
        self.operator = operator
        self.outcome: ReplayOutcome | None = None
        self.workers: list[str] = []

    def ask(self, workers: Any) -> None:
        self.verdict, self.workers = None, list(workers)
        record = self.operator.record
        assert record is not None
        WorkerTrial(self.world, self.operator.dialer, record, self.workers, self.judge)

    def judge(self, outcome: ReplayOutcome) -> None:
        self.outcome, self.verdict = outcome, verdict_on(outcome, self.workers)
        self.world.note("verdict", self.verdict)
        self.launch.wake()


class GateOperator:
    """The operator of a seed: `ended` hears when the last of its work is over. `after` is how its worker was right
    after the change, `is_planted` whether that began with a wrong model."""

    def __init__(self, world: SeededWorld, dialer: Dialer, site: SupervisedSite, ended: Callable[[], None]) -> None:
        self.world, self.dialer, self.site, self.ended = world, dialer, site, ended
        self.operators: Operators | None = None
        chance = world.random("gates")
        self.kind, self.is_planted = chance.choice(KINDS), chance.random() < PLANTED
        names = [name for name in site.plan.worker_names if site.plan.role_of(name) in GENERATING_ROLES]
        self.name = chance.choice(names)
        self.writer = RecordWriter(world, dialer, chance.randrange(1, MOST_RECORDED), self.recorded)
        self.record: Record | None = None
        self.change: GatedChange | None = None
        self.launch: HostLaunch | None = None
        self.after: str | None = None
        site.begins_wrong = self.begins_wrong

    def plan(self, operators: Operators, begin: float, joins: Callable[[], None]) -> None:
        self.operators = operators
        joins()
        self.world.at(begin - BEFORE, self.writer.begin)

    def begins_wrong(self, name: str) -> bool:
        """Return whether a worker's process begins with a wrong model: one that is there by the change alone, or is not
        to serve since then, of the launch that was asked."""
        if not self.is_planted or name != self.name or self.launch is not self.site.launch_of(name):
            return False
        child = self.child
        return self.kind == SCALE or child is not None and child.drain_state is not DrainState.WORKING

    @property
    def child(self) -> Any:
        return next((child for child in self.site.children if child.name == self.name), None)

    def recorded(self, record: Record | None) -> None:
        self.record = record
        launch = self.site.launch_of(self.name)
        if record is None or launch.is_over:
            self.ended()
            return
        self.launch = launch
        if self.kind == UNDRAIN:
            asked = {"command": "drain", "names": [self.name], "drain_timeout": DRAIN_TIMEOUT}
            self.then(self.ask(asked), self.drained)
        elif self.kind == RESTART:
            self.gate({"command": RESTART, "names": [self.name], "drain_timeout": DRAIN_TIMEOUT})
        else:
            self.add()

    def add(self) -> None:
        role = self.site.plan.role_of(self.name)
        names = [name for name in self.site.plan.worker_names if self.site.plan.role_of(name) == role]
        self.name = f"{role}:{len(names)}"
        self.gate({"command": SCALE, "counts": {role: len(names) + 1}, "drain_timeout": DRAIN_TIMEOUT})

    def drained(self, client: ChangeClient) -> None:
        if client.code or self.child is None:
            self.go_back()
            return
        for process in self.site.processes:
            if process.name == self.name and process.alive:
                process.kill()
        self.gate({"command": UNDRAIN, "names": [self.name]})

    def ask(self, request: dict[str, Any]) -> ChangeClient:
        assert self.operators is not None
        name = self.site.plan.worker_names[0]
        return self.operators.ask(request, name)

    def gate(self, request: dict[str, Any]) -> None:
        assert self.operators is not None and self.launch is not None
        client = self.change = GatedChange(self.world, request | {"gate": TRIAL_SECONDS}, self.launch, self)
        self.operators.put(client)
        self.then(client, self.over)

    def then(self, client: ChangeClient, work: Callable[[ChangeClient], None]) -> None:
        """Do something once a change has ended, or should have."""
        assert self.operators is not None
        if client.ended_at is not None or self.world.now() >= client.began + ENDS_WITHIN:
            work(client)
        else:
            self.operators.busy(LOOK)
            self.world.after(LOOK, self.then, client, work)

    def over(self, client: ChangeClient) -> None:
        child = self.child
        self.after = None if child is None else child.drain_state.value
        self.go_back()

    def go_back(self) -> None:
        """Have all workers work as planned, with a right model."""
        assert self.operators is not None
        self.launch = None
        if self.kind == SCALE:
            role = self.site.plan.role_of(self.name)
            count = len([name for name in self.site.plan.worker_names if self.site.plan.role_of(name) == role])
            if self.child is not None:
                back = {"command": SCALE, "counts": {role: count}, "drain_timeout": DRAIN_TIMEOUT}
                own = sorted(self.site.plan.worker_names)
                self.world.after(KEPT_FOR, self.operators.insist, back, own[0], own)
        elif self.after != DrainState.WORKING.value:
            self.operators.insist({"command": RESTART, "names": [self.name], "drain_timeout": 0.0}, self.name)
        self.operators.busy(KEPT_FOR + LOOK)
        self.world.after(KEPT_FOR, self.wait, self.world.now() + ENDS_WITHIN)

    def wait(self, latest: float) -> None:
        """Wait until all work as planned."""
        assert self.operators is not None
        roles = planned_roles(self.site.plan)
        there = {child.name for child in self.site.children if not child.plan.is_proxy}
        work = all(
            child.state is ChildState.READY and child.drain_state is DrainState.WORKING
            for child in self.site.children
            if not child.plan.is_proxy
        )
        if work and there == roles.keys() or self.world.now() >= latest:
            self.ended()
        else:
            self.operators.busy(LOOK)
            self.world.after(LOOK, self.wait, latest)


def a_gate_tells_right_from_wrong(run: "SeedRun") -> Iterator[str]:
    """A worker with a wrong model does not come to serve, one with the right model does where nothing was amiss, and
    no trial finds a difference in what that answers. What is recorded with an adapter that was replaced tells nothing
    of either, and who is tried by nothing else does not come to serve."""
    gate = run.gate
    if gate is None or gate.change is None or gate.change.ended_at is None:
        return
    change, what = gate.change, f"{gate.change} of {gate.name}"
    if change.code and gate.after == DrainState.WORKING.value and gate.kind != SCALE and change.outcome is not None:
        yield f"{what} is refused, and the worker works: {change.text}"
    if change.code and gate.after is not None and gate.kind == SCALE and change.outcome is not None:
        yield f"{what} is refused, and the worker is there: {change.text}"
    kinds, tries = set[DifferenceKind](), 0
    if change.outcome is not None:
        tries = len(change.outcome.comparable)
        found = [difference for one in change.outcome.comparable for _, difference in one.differences]
        kinds = {difference.kind for difference in found}
    if gate.is_planted and not change.code:
        yield f"{what} let in a wrong model"
    if change.outcome is not None and not tries and not change.code:
        yield f"{what} let in a worker that nothing has tried"
    if not gate.is_planted and kinds - {DifferenceKind.UNANSWERED}:
        yield f"{what} found {change.text} of a right model"
    if run.faults or change.outcome is None and not change.code:
        return
    is_wrong = gate.is_planted or not tries
    if bool(change.code) != is_wrong or gate.is_planted and tries and kinds != {DifferenceKind.LOGITS}:
        yield f"{what} ended so, where nothing was amiss: {change.text}"
