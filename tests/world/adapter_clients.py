# SPDX-License-Identifier: Apache-2.0
"""Clients that ask for adapters, in a share of the seeds, while an operator loads, replaces and unloads some. A burst
is of several adapters and the model itself behind one prompt. Whatever happens to processes, no answer is of another
adapter's KV, all processes know the same ones in the end, and what nobody names any more is in no worker's memory."""

import json
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any

from adapter_history import HEARD_LATE, HEARD_WITHIN, UNREADABLE, AdapterHistory
from engine_process import TinyModel
from gates import AdminCall
from hash_adapters import BROKEN, GOOD, HashAdapters, bytes_of, starts_of, values_of
from hash_model import NEXT_SALT, NOTHING, MixedIn, answer_of
from http_reader import HttpReader
from receipt_clients import KEY
from releases import waits_for_its_release, was_begun_by_next
from request_connections import AnswerTaker, Dialer, PendingAnswer
from site_plan import BEGINS_WITH, SitePlan
from virtual_time import SeededWorld

from pontil.runtime.models.config import ModelConfig
from pontil.runtime.wire.simulated.processes import WorldProcess
from pontil.runtime.worker.generate.worker import Worker

if TYPE_CHECKING:
    from seed_run import SeedRun

# Share of seeds with such clients, and of those whose workers have memory for so many adapters, in bytes of one.
SHARE, BOUNDED, ROOM = 0.4, 0.6, (1.5, 2.5)
NAME, MODEL = "adapter-", "tiny"
# The names of adapters, of which some are there when a launch begins.
NAMES = (*BEGINS_WITH, "poems")
# The first token of their prompts, which no other client's begins with; how many there are, and their tokens.
OWN, PROMPTS, TOKENS = 252, 3, (20, 150)
# Bursts of a seed, tokens of an answer, seconds until a client asks again, and those in which it has its answer after
# the last fault.
BURSTS, ANSWERS, AGAIN, ANSWERED_WITHIN = (4, 9), (1, 100), 0.7, 15.0
# Changes of a seed, and the most seconds between two; shares of loads that are of the adapter that cannot be read, and
# of changes that are unloads.
CHANGES, PAUSE, BAD, UNLOADS = (4, 11), 0.8, 0.15, 0.25
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
IN_THE_WAY, CANNOT, LACKS = "already", "cannot load it", "does not have the adapter"


class AdapterCall(AnswerTaker):
    """One request for an adapter, or for the model. Its client asks until it has an answer, or is told that there is no
    such adapter. It `asked` first and was `answered` at these times; `ids` are the tokens, `refusal` is the status."""

    def __init__(self, clients: "AdapterClients", number: int, model: str, prompt: list[int]) -> None:
        self.clients, self.world, self.number, self.model = clients, clients.world, number, model
        chance = clients.chance
        self.prompt = [*prompt, *(3 + chance.randrange(200) for _ in range(chance.randrange(3)))]
        self.seed, self.tokens = chance.getrandbits(31), chance.randrange(*ANSWERS)
        self.tries, self.began, self.asked, self.answered_at = 0, 0.0, 0.0, inf
        self.ids: list[int] | None = None
        self.refusal: int | None = None
        self.pending: PendingAnswer | None = None
        # That it asked last.
        self.proxy: WorldProcess | None = None

    @property
    def name(self) -> str:
        return f"{NAME}{self.number}-{self.tries}"

    def begin(self) -> None:
        self.began = self.world.now()
        self.ask()

    def ask(self) -> None:
        self.tries, self.asked = self.tries + 1, self.world.now()
        connection = self.clients.dialer.dial(8000 + self.number)
        if connection is None:
            self.disconnected()
            return
        self.proxy = connection.process
        asked = {"model": self.model, "prompt": self.prompt, "seed": self.seed, "max_tokens": self.tokens}
        data = json.dumps(asked | {"ignore_eos": True, "return_token_ids": True}).encode()
        head = f"host: localhost\r\nauthorization: Bearer {KEY}\r\nx-request-id: {self.name}\r\n"
        head += f"content-length: {len(data)}\r\ncontent-type: application/json\r\n\r\n"
        self.pending = connection.ask(self, f"POST /v1/completions HTTP/1.1\r\n{head}".encode() + data)

    def end(self) -> None:
        self.answered_at = self.world.now()
        self.clients.ended()

    # The parts of an AnswerTaker.

    def disconnected(self) -> None:
        self.world.after(AGAIN, self.ask)

    def answered(self, reader: HttpReader) -> None:
        text = bytes(reader.body).decode()
        if reader.status == 200:
            self.ids = json.loads(text)["choices"][0]["token_ids"]
            self.end()
        elif reader.status == 404 or (reader.status == 503 and CANNOT in text):
            self.refusal = reader.status
            self.end()
        elif reader.status in (429, 503):
            if LACKS in text:
                self.world.violate(f"who_asked_for_an_adapter_gets_it: {self.name} is told that a worker lacks it")
            self.disconnected()
        else:
            self.world.violate(f"a request for an adapter has an answer: {reader.status} {text[:200]}")
            self.end()


class AdapterOperator:
    """The operator, who asks for one change after the other, of any proxy."""

    def __init__(self, clients: "AdapterClients") -> None:
        self.clients, self.world, self.history = clients, clients.world, clients.history
        self.chance = self.world.random("adapters/operator")
        self.left = self.chance.randrange(*CHANGES)
        self.call: AdminCall | None = None

    def change(self) -> None:
        if not self.left:
            self.clients.ended()
            return
        self.left -= 1
        name = self.chance.choice(NAMES)
        if self.chance.random() < UNLOADS:
            self.unload(name)
        elif self.chance.random() < BAD:
            self.load(name, BROKEN, UNREADABLE)
        else:
            directory = self.chance.choice(GOOD)
            self.load(name, directory, self.clients.values[directory])

    def load(self, name: str, directory: str, value: int) -> None:
        change = self.history.begin(name, value)

        def told(reader: HttpReader | None) -> None:
            if reader is not None and reader.status == 200:
                change.done_at = self.world.now()
            elif reader is not None and reader.status == 400 and IN_THE_WAY in bytes(reader.body).decode():
                self.history.changes.remove(change)
            elif reader is not None and reader.status == 400 and value == UNREADABLE:
                self.history.begin(name, None).done_at = self.world.now()
            else:
                self.check(reader, LOAD)
                if value == UNREADABLE:
                    # It may be taken back, by a proxy that dies before it says so.
                    self.history.begin(name, None)
            self.go_on()

        body = {"lora_name": name, "lora_path": f"{self.clients.plan.adapter_folder}/{directory}"}
        in_place = self.chance.random() < 0.8
        self.ask(LOAD, body | ({"load_inplace": True} if in_place else {}), told)

    def unload(self, name: str) -> None:
        change = self.history.begin(name, None)

        def told(reader: HttpReader | None) -> None:
            if reader is not None and reader.status == 200:
                change.done_at = self.world.now()
            elif reader is not None and reader.status == 404:
                self.history.changes.remove(change)
            else:
                self.check(reader, UNLOAD)
            self.go_on()

        self.ask(UNLOAD, {"lora_name": name}, told)

    def check(self, reader: HttpReader | None, path: str) -> None:
        """Note a violation unless a change was refused for a while, or its proxy died before it said what became of
        it."""
        if reader is not None and reader.status not in (409, 429, 503):
            self.world.violate(f"a change of adapters ends: {path} {reader.status} {bytes(reader.body)[:200]!r}")

    def ask(self, path: str, body: dict[str, Any], told: Callable[[HttpReader | None], None]) -> None:
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\ncontent-length: {len(data)}\r\ncontent-type: application/json\r\n"
        self.call = AdminCall(self.clients.dialer, head, data, told)

    def go_on(self) -> None:
        self.world.after(self.chance.random() * PAUSE, self.change)


class AdapterClients:
    """The clients of a seed that ask for adapters, and the operator."""

    def __init__(
        self, world: SeededWorld, dialer: Dialer, ended: Callable[[], None], plan: SitePlan, config: ModelConfig
    ) -> None:
        self.world, self.dialer, self.ended, self.plan = world, dialer, ended, plan
        self.chance = world.random("adapters")
        self.values = values_of(config)
        self.history = AdapterHistory(world, {name: self.values[one] for name, one in BEGINS_WITH.items()})
        self.calls: list[AdapterCall] = []

    def plan_all(self, begin: float, seconds: float, joins: Callable[[], None]) -> None:
        if not self.plan.adapter_folder:
            return
        prompts = [self.prompt() for _ in range(PROMPTS)]
        for _ in range(self.chance.randrange(*BURSTS)):
            at, prompt = begin + self.chance.random() * seconds, self.chance.choice(prompts)
            for model in (MODEL, *NAMES):
                call = AdapterCall(self, len(self.calls), model, prompt)
                self.calls.append(call)
                joins()
                self.world.at(at + self.chance.random() * AGAIN, call.begin)
        joins()
        self.world.at(begin + self.chance.random() * PAUSE, AdapterOperator(self).change)

    def prompt(self) -> list[int]:
        return [OWN, *(3 + self.chance.randrange(200) for _ in range(self.chance.randrange(*TOKENS)))]


def with_adapters(plan: SitePlan, chance: random.Random, model: TinyModel) -> SitePlan:
    """Draw whether a seed has such clients, and workers with memory for a few adapters only."""
    has, is_bounded, room = chance.random() < SHARE, chance.random() < BOUNDED, chance.choice(ROOM)
    # A swap shows something only where there is want of room.
    is_bounded, room = is_bounded or plan.swaps > 0, min(ROOM) if plan.swaps else room
    if not (has if plan.adapters < 0 else plan.adapters) or plan.tenants or plan.staged is not None:
        return plan
    # Each rank has all of one here.
    most = max(map(plan.ranks_of, plan.worker_names)) * bytes_of(model.config)
    memory = int(room * most) if is_bounded else None
    return replace(plan, adapter_folder=str(model.folder / "adapters"), adapter_memory=memory)


def of_adapters(name: str) -> bool:
    """Return whether a row is one of a client's that asks for adapters."""
    return name.startswith(NAME)


def no_answer_is_of_another_adapter(run: "SeedRun") -> Iterator[str]:
    """Each answer has the tokens of an adapter for which its name stood, all of them; and who is told that there is
    none, asked for one that there was not."""
    vocab, history = run.model.config.vocab_size, run.adapters.history
    salts = (0, NEXT_SALT) if run.site.had_next else (0,)
    for call in run.adapters.calls:
        calm = run.watch.was_calm(call.asked, call.answered_at)
        late = HEARD_WITHIN if calm else HEARD_LATE
        values: set[int | None] = {0}
        if call.model != MODEL:
            values = history.may_be(call.model, (call.asked, call.answered_at), late, call.proxy)
        if call.refusal is not None and (None if call.refusal == 404 else UNREADABLE) not in values:
            yield f"{call.name} is told {call.refusal}, and {call.model} stands for {values}"
        if call.ids is None:
            continue
        known = [value for value in values if value not in (None, UNREADABLE)]
        starts = starts_of(run.model.config, call.prompt)
        mixed_in = [MixedIn(value, starts[value]) if value in starts else NOTHING for value in known]
        asked = call.prompt, call.seed, 0, call.tokens, vocab
        rights = [answer_of(*asked, salt, one) for salt in salts for one in mixed_in]
        if call.ids not in rights:
            yield f"{call.name} for {call.model} has the answer of another adapter than {known}"


def adapters_are_answered(run: "SeedRun") -> Iterator[str]:
    """Each request for an adapter has its answer within a bound from the last fault, or from the end of its wait for a
    release that began it."""
    for call in run.adapters.calls:
        names = [f"{NAME}{call.number}-{number + 1}" for number in range(call.tries)]
        waits = waits_for_its_release(run.site, call.began) if was_begun_by_next(run.world, names) else -inf
        waited = min(call.answered_at, run.world.time) - max(call.began, run.made.over_at, waits)
        if call.answered_at == inf:
            yield f"{call.name} for {call.model} has no answer"
        elif waited > ANSWERED_WITHIN:
            yield f"{call.name} for {call.model} waited {waited:.1f} s after the last fault"


def rows_name_their_adapter(run: "SeedRun") -> Iterator[str]:
    """The row of each answer has the name that was asked for, and its exact counts."""
    if run.world.disks.lost_rows:
        return
    with closing(sqlite3.connect(run.folder / "usage")) as database:
        rows = {name: row for name, *row in database.execute(ROWS)}
    for call in run.adapters.calls:
        if call.ids is not None and rows.get(call.name) != [call.model, "closed", len(call.prompt), call.tokens]:
            yield f"{call.name} for {call.model} has the row {rows.get(call.name)}"


ROWS = "SELECT name, model, state, prompt_tokens, completion_tokens FROM requests"


def all_know_the_same_adapters(run: "SeedRun") -> Iterator[str]:
    """In the end proxies and workers know the same changes, workers have loaded what has a name, and proxies serve
    that."""
    proxies = [one.proxy for one in run.site.proxies if one.proxy is not None]
    workers = [one.worker for one in run.site.workers if one.worker is not None]
    books = {one.config.name: one.adapters.book for one in proxies}
    books |= {one.sockets.config.name: one.adapters.book for one in workers}
    known = {name: {one: change.number for one, change in book.changes.items()} for name, book in books.items()}
    if len({json.dumps(one, sort_keys=True) for one in known.values()}) > 1:
        yield f"they know {known}"
        return
    for worker in workers:
        checks, named = worker.adapters.loads.checks, worker.adapters.book.named({})
        if lacks := [name for name, digest in named.items() if digest not in checks.loaded | checks.failed.keys()]:
            yield f"{worker.sockets.config.name} has not loaded {lacks}"
    served = {one.config.name: sorted(one.adapters.names) for one in proxies}
    if len({json.dumps(names) for names in served.values()}) > 1:
        yield f"proxies serve {served}"


def unloaded_adapters_are_in_no_memory(run: "SeedRun") -> Iterator[str]:
    """A worker has in memory what has a name, within its limit, and its model what it says."""
    for one in run.site.workers:
        if one.worker is not None and run.plan.adapter_folder:
            yield from (f"{one} {what}" for what in wrong_in_memory(one.worker))


def wrong_in_memory(worker: Worker) -> Iterator[str]:
    known, held = worker.adapters.loads.known, worker.machine.model_adapters
    loaded = {digest: one for digest, one in known.by_digest.items() if one.is_loaded}
    if nameless := loaded.keys() - {*known.by_name.values()}:
        yield f"has {len(nameless)} adapters in memory that have no name"
    if known.memory is not None and known.nbytes > known.memory:
        yield f"has {known.nbytes} bytes of adapters, and may have {known.memory}"
    assert isinstance(held, HashAdapters), "the model hashes"
    if {one.used.number for one in loaded.values()} != held.values.keys():
        yield f"says that it has the numbers {sorted(one.used.number for one in loaded.values())}"


ADAPTER_CHECKS = (
    no_answer_is_of_another_adapter, adapters_are_answered, rows_name_their_adapter, all_know_the_same_adapters,
    unloaded_adapters_are_in_no_memory,
)  # fmt: skip
