# SPDX-License-Identifier: Apache-2.0
"""A launch of several models in the world, whose memory holds two of them: they sleep and wake as clients ask for them,
the worker of one is killed again and again, and another one gets a second worker for a while."""

import json
import math
import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from engine_process import EngineProcess, TinyModel
from goodput import quiet_folder, use
from hash_model import answer_of, salt_of_model
from http_reader import HttpReader
from install import enter
from operators import ChangeClient
from request_connections import AnswerTaker, Dialer, PendingAnswer
from site_plan import CALLERS, SitePlan
from step_profile import StepProfile
from supervised_site import SupervisedSite
from virtual_time import SeededWorld

from pontil.launcher.child.child_state import ChildState
from pontil.launcher.plan.child_plan import ChildPlan
from pontil.runtime.proxy.admission.model_waking import USUAL_START
from pontil.runtime.wire.simulated.virtual_time import TraceWriter

# The models, those asked most first, with what each takes of MEMORY, in bytes: the last two do not fit at once.
FIRST, GROWING, CRASHING = "tiny", "calm", "crashing"
SIZES = {FIRST: 4 << 20, GROWING: 5 << 20, CRASHING: 6 << 20}
MEMORY = 10 << 20
# Seconds that a request waits for a model at the most, and those of all requests, from the first to the last.
PATIENCE, SPREAD = 12.0, 40.0
REQUESTS, KILLS = 40, 3
# Seconds until an operator has taken back a worker that was added, and in which each change ends.
GROWN_FOR, CHANGED_WITHIN = 12.0, 120.0
# Seconds until a client that is refused has its answer, its tries, and when a seed is ended in any case.
ANSWERED_WITHIN, TRIES, LONGEST = 90.0, 12, 400.0
LOOK = 0.1
# Tokens of answers: the longest last so long that others have their turn before they end.
LENGTHS = (2, 8, 60, 600)
# Times of steps by their rows, and seconds of a pull of a block.
STEPS, BLOCK_SECONDS = "1=15,8=16,64=90,256=300", 1e-4
# Seconds after a kill in which requests for that model may be refused at once.
RETURNS_WITHIN = 15.0
# Violations of one check that are noted.
SHOWN = 3


class ModelsPlan(SitePlan):
    """A proxy and a mixed worker for each model."""

    __slots__ = ()

    def role_of(self, worker: str) -> str:
        return "mixed"

    def model_of(self, worker: str) -> str:
        return worker.partition("-mixed:")[0] if "-" in worker else FIRST

    def child_plans(self, folder: Path) -> list[ChildPlan]:
        proxy, first = SitePlan.child_plans(self, folder)
        told = {"tool_call_parser": "auto", "reasoning_parser": "auto", "hide_end_token": False, "adapter": []}
        further = [name for name in SIZES if name != FIRST]
        models = [{"name": name, "model": name, **told} for name in further]
        proxy = proxy.configured(further_models=models, model_memory=MEMORY, first_byte_timeout=PATIENCE)
        workers = [self.worker_plan(f"{name}-mixed:0", self.controls, folder) for name in further]
        return [proxy, first, *(one.configured(further_model=self.model_of(one.name)) for one in workers)]


def plan_of_models() -> ModelsPlan:
    none: dict[str, Any] = dict.fromkeys(
        ("embed", "rerank", "stages", "faults", "changes", "tiers", "keys", "gates"), 0
    )
    one: dict[str, Any] = dict.fromkeys(("mixed", "proxies", "hosts", "kept_kv", "prefill_ranks", "decode_ranks"), 1)
    return ModelsPlan(prefill=0, decode=0, data_parallel=0, **none, **one)


@dataclass(slots=True)
class ModelTry:
    """One try of a request: its answer has a `status`, and maybe says when to ask again."""

    began: float
    ended: float | None = None
    status: int | None = None
    again: float | None = None


@dataclass(slots=True)
class ModelRequest:
    """A request for a model by a client that asks again when it is told to."""

    number: int
    model: str
    prompt: list[int]
    seed: int
    tokens: int
    tries: list[ModelTry] = field(default_factory=list)
    ids: list[int] | None = None

    @property
    def body(self) -> bytes:
        asked = {"model": self.model, "prompt": self.prompt, "seed": self.seed, "max_tokens": self.tokens}
        return json.dumps(asked | {"ignore_eos": True, "return_token_ids": True}).encode()


class ModelClient(AnswerTaker):
    """The client of one request."""

    def __init__(self, run: "ModelsRun", request: ModelRequest) -> None:
        self.run, self.request = run, request
        self.pending: PendingAnswer | None = None

    def begin(self) -> None:
        connection = self.run.dialer.dial(6000)
        assert connection is not None, "the proxy is there all the time"
        body = self.request.body
        lines = f"host: localhost\r\nauthorization: Bearer {CALLERS['ann']}\r\n"
        lines += f"content-length: {len(body)}\r\ncontent-type: application/json\r\n\r\n"
        self.request.tries.append(ModelTry(self.run.world.now()))
        self.pending = connection.ask(self, f"POST /v1/completions HTTP/1.1\r\n{lines}".encode() + body)

    def disconnected(self) -> None:
        self.run.ended()

    def answered(self, reader: HttpReader) -> None:
        last, after = self.request.tries[-1], reader.headers.get("retry-after")
        last.ended, last.status = self.run.world.now(), reader.status
        last.again = None if after is None else float(after)
        if reader.status == 200:
            self.request.ids = json.loads(reader.body)["choices"][0]["token_ids"]
        elif last.again is not None and len(self.request.tries) < TRIES:
            self.run.world.after(last.again, self.begin)
            return
        self.run.ended()


class ModelsRun:
    """One seed."""

    def __init__(self, seed: int, model: TinyModel, folder: Path, trace: TraceWriter | None = None) -> None:
        world = self.world = SeededWorld(seed, trace)
        enter(world, folder)
        self.model = model
        self.site = SupervisedSite(world, plan_of_models(), model, folder)
        (launch,) = self.site.launches
        self.children = launch.supervisor.children
        self.memory = launch.supervisor.recovery.models
        self.memory.memory = MEMORY
        self.memory.sizes = {"" if name == FIRST else name: (size, 0) for name, size in SIZES.items()}
        self.launch, self.changes = launch, list[ChangeClient]()
        self.dialer = Dialer(world, lambda: self.site.proxies[0] if self.site.proxies else None)
        self.chance = world.random("models")
        self.requests = [self.request(number) for number in range(REQUESTS)]
        self.waiting = len(self.requests)
        self.hooked = set[EngineProcess]()
        self.killed_at: list[float] = []
        # The number of times that a model was woken, those that sleep, and the most workers that one had at once.
        self.wakes, self.asleep, self.grew = 0, set[str](), 0
        # The seconds of each model's starts, as far as they were seen.
        self.starts: dict[str, set[float]] = defaultdict(set)

    def request(self, number: int) -> ModelRequest:
        (name,) = self.chance.choices(list(SIZES), [1 / rank for rank in range(1, len(SIZES) + 1)])
        prompt = [self.chance.randrange(3, 200) for _ in range(self.chance.randrange(1, 90))]
        return ModelRequest(number, name, prompt, self.chance.getrandbits(31), self.chance.choice(LENGTHS))

    def ended(self) -> None:
        self.waiting -= 1

    def run(self) -> None:
        world = self.world
        self.site.begin()
        self.look()
        world.run(lambda: bool(self.site.proxies and self.site.workers) or world.time > world.now() + LONGEST)
        begin = world.now() + 1.0
        for request in self.requests:
            world.at(begin + self.chance.uniform(0.0, SPREAD), ModelClient(self, request).begin)
        world.at(begin + self.chance.uniform(0.0, SPREAD), self.scale, 2)
        for _ in range(KILLS):
            world.at(begin + self.chance.uniform(0.0, SPREAD), self.kill)
        world.run(lambda: not (self.waiting or self.changing) or world.time > begin + LONGEST)
        world.run_until(world.time + 2.0)
        for check in CHECKS:
            for what in islice(check(self), SHOWN):
                world.violate(f"{check.__name__}: {what}")

    @property
    def changing(self) -> bool:
        """Return whether the second worker has not come and gone yet."""
        return len(self.changes) < 2 or self.changes[-1].ended_at is None

    def scale(self, workers: int) -> None:
        """Ask for so many workers of a model, and later for one. What is asked while a model comes is asked again."""
        asked = ChangeClient(self.world, {"command": "scale", "counts": {GROWING: workers}}, self.launch)
        self.launch.supervisor.rollouts.take(asked, asked.request)
        self.launch.wake()
        self.changes.append(asked)
        if workers > 1:
            self.world.after(GROWN_FOR, self.scale_back)

    def scale_back(self) -> None:
        if self.changes[-1].ended_at is None:
            self.world.after(LOOK, self.scale_back)
        else:
            self.scale(1)

    def kill(self) -> None:
        """Kill the worker of the model that crashes; one that sleeps or starts is looked for again."""
        found = next((one for one in self.site.workers if model_name(one.name) == CRASHING), None)
        if found is None:
            self.world.after(LOOK, self.kill)
            return
        self.killed_at.append(self.world.now())
        found.kill()

    def look(self) -> None:
        """Watch, all the time."""
        taken = Counter(model_name(child.name) for child in self.children if is_awake(child))
        self.wakes += len(self.asleep & taken.keys())
        self.asleep, self.grew = SIZES.keys() - taken.keys(), max(self.grew, *taken.values(), 0)
        if sum(SIZES[name] * count for name, count in taken.items()) > MEMORY and not self.world.violations:
            self.world.violate(f"models_fit_their_memory: {', '.join(taken)} are in it at once")
        for child in self.children:
            if child.running is not None and child.running.start_seconds is not None and not child.plan.is_proxy:
                self.starts[model_name(child.name)].add(child.running.start_seconds)
        for process in self.site.workers:
            if process not in self.hooked:
                self.hooked.add(process)
                untyped: Any = process
                untyped.signal = partial(self.signalled, process, process.signal)
        self.world.after(LOOK, self.look)

    def signalled(self, process: EngineProcess, obey: Callable[[signal.Signals], None], number: signal.Signals) -> None:
        """Have a worker be signalled by its supervisor. It is asked to end when it sleeps, and else never here."""
        if process.has_requests:
            self.world.violate(f"a_model_sleeps_after_its_last_request: {process} had some")
        obey(number)


def model_name(worker: str) -> str:
    return plan_of_models().model_of(worker)


def is_awake(child: Any) -> bool:
    return not child.plan.is_proxy and child.state not in (ChildState.ASLEEP, ChildState.GIVEN_UP)


def every_request_is_answered_by_its_model(run: ModelsRun) -> Iterator[str]:
    vocab = run.model.config.vocab_size
    for one in run.requests:
        right = answer_of(one.prompt, one.seed, 0, one.tokens, vocab, salt_of_model(one.model))
        if one.ids != right:
            said = [(tried.status, tried.again) for tried in one.tries]
            yield f"request {one.number} for {one.model} has another answer, or none, after {said}"
        elif (took := (one.tries[-1].ended or 0.0) - one.tries[0].began) > ANSWERED_WITHIN:
            yield f"request {one.number} for {one.model} took {took:.0f} s"


def a_refusal_is_honest(run: ModelsRun) -> Iterator[str]:
    """A client that is refused has waited as long as it may, unless the model has just died, and is told the time of a
    start."""
    for one in run.requests:
        starts = [*run.starts[one.model], USUAL_START]
        for tried in (tried for tried in one.tries if tried.status not in (200, None)):
            waited = (tried.ended or tried.began) - tried.began
            if tried.status != 503 or tried.again is None:
                yield f"request {one.number} for {one.model} got {tried.status} with Retry-After {tried.again}"
                continue
            if one.model == CRASHING and any(0 <= tried.began + waited - at < RETURNS_WITHIN for at in run.killed_at):
                continue
            if waited < PATIENCE - LOOK:
                yield f"request {one.number} for {one.model} was refused after {waited:.1f} s"
            if not math.floor(min(starts)) <= tried.again <= math.ceil(max(starts)):
                yield f"request {one.number} for {one.model} is told {tried.again:g} s, and starts took {starts}"


def every_change_ends(run: ModelsRun) -> Iterator[str]:
    for change in run.changes:
        took = (change.ended_at or math.inf) - change.began
        if change.code or took > CHANGED_WITHIN:
            yield f"{change} ended with {change.code} after {took:.0f} s: {change.text}"
    if run.changing:
        yield "a second worker has not come and gone"


def a_crash_touches_no_other(run: ModelsRun) -> Iterator[str]:
    for child in run.children:
        if not child.plan.is_proxy and model_name(child.name) != CRASHING and child.exits:
            yield f"{child.name} ended too: {child.exits[-1].describe()}"


def nothing_is_left(run: ModelsRun) -> Iterator[str]:
    for process in run.site.workers:
        if left := {name: count for name, count in process.left.items() if count}:
            yield f"{process} has {left}"
    for serving in run.site.proxies:
        assert serving.proxy is not None
        if serving.proxy.requests:
            yield f"{serving} has {len(serving.proxy.requests)} requests"
    yield from run.world.failures


CHECKS = (
    every_request_is_answered_by_its_model, a_refusal_is_honest, every_change_ends, a_crash_touches_no_other,
    nothing_is_left,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ModelsOutcome:
    """The outcome of a seed: how often models were woken, and requests refused for a while; the most workers of one."""

    seed: int
    trace: str
    kills: int
    wakes: int
    refused: int
    grew: int
    violations: list[str]


def run_models(seed: int, model: TinyModel, plant: Callable[[], None]) -> ModelsOutcome:
    """Run a seed, after a fault was planted."""
    plant()
    use(StepProfile.read(STEPS), BLOCK_SECONDS)
    with quiet_folder() as folder:
        run = ModelsRun(seed, model, folder)
        run.run()
        refused = sum(tried.status == 503 for one in run.requests for tried in one.tries)
        trace = run.world.hash.hexdigest()[:16]
        return ModelsOutcome(seed, trace, len(run.killed_at), run.wakes, refused, run.grew, run.world.violations)
