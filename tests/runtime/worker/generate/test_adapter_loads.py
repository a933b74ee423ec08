# SPDX-License-Identifier: Apache-2.0
"""Adapters come into memory when they are asked for, and leave it within a limit, but for those in use."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pontil.gpu_ops.parameters.adapters import MadeAdapter
from pontil.runtime.disaggregation.rank_orders import RankOrders
from pontil.runtime.engine.sequences.known_adapters import KnownAdapters
from pontil.runtime.errors import AdapterError
from pontil.runtime.loaders.hf.adapter import PeftAdapter
from pontil.runtime.models.adapters import ModelAdapters
from pontil.runtime.wire.messages import AdapterState, AdapterTable, Submit
from pontil.runtime.worker.adapters import adapter_reader
from pontil.runtime.worker.adapters.adapter_parts import AdapterParts
from pontil.runtime.worker.adapters.adapter_reader import AdapterJob, AdapterReader
from pontil.runtime.worker.generate.adapter_loads import AdapterLoads
from pontil.runtime.worker.generate.worker_adapters import WorkerAdapters
from pontil.runtime.worker.links.proxy_links import ProxyLinks
from pontil.runtime.worker.process.worker_request import WorkerRequest

DIGESTS = {name: f"{place:02x}" * 32 for place, name in enumerate("abcd", 1)}
SIZE = 10


class Loads:
    """Adapters of 10 bytes each, of which so many bytes have room; the reader is called by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, memory: int | None) -> None:
        self.numbers: dict[int, str] = {}
        self.files = {f"/{name}": digest for name, digest in DIGESTS.items()}
        self.known = KnownAdapters(memory)
        model = cast(ModelAdapters, SimpleNamespace(remove=lambda number: self.numbers.pop(number, None)))
        self.reader = AdapterReader(model, lambda: None)
        self.left: list[str] = []
        self.loads = AdapterLoads(self.known, AdapterParts(model, self.reader, RankOrders()), self.left.append)
        self.jobs: list[AdapterJob] = []
        self.running: list[WorkerRequest] = []
        monkeypatch.setattr(adapter_reader, "make_adapter", self.make)
        monkeypatch.setattr(self.reader, "put", self.jobs.append)
        for name, digest in DIGESTS.items():
            self.known.learn(name, digest, f"/{name}")

    def make(self, model: ModelAdapters, directory: str, source: str) -> tuple[PeftAdapter, MadeAdapter]:
        if directory not in self.files:
            raise AdapterError(f"{source} is gone")
        digest = self.files[directory]
        return PeftAdapter(digest, {}), MadeAdapter(SIZE, lambda number: self.numbers.update({number: digest}))

    def ask(self, name: str) -> WorkerRequest:
        request = cast(WorkerRequest, SimpleNamespace(submit=SimpleNamespace(adapter=DIGESTS.get(name, "")), name=name))
        if self.loads.submit(request):
            self.running.append(request)
        return request

    def used(self) -> list[str]:
        return [one.submit.adapter for one in self.running]

    def retire(self) -> None:
        self.loads.retire(self.used)

    def turn(self) -> str:
        """Read what is to be read, and return the names of those that started."""
        started = ""
        for _ in range(3):
            while self.jobs:
                self.reader.read(self.jobs.pop(0))
            for request in self.loads.poll(self.used):
                self.running.append(request)
                started += cast(Any, request).name
        return started

    @property
    def memory(self) -> str:
        names = {digest: name for name, digest in DIGESTS.items()}
        held = {*self.numbers.values()}
        assert held == set(self.loads.memory)
        assert all(self.known.by_digest[digest].used.number == number for number, digest in self.numbers.items())
        return "".join(sorted(names[digest] for digest in held))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int | None], Loads]]:
    yield lambda memory: Loads(monkeypatch, memory)


def test_a_request_waits_for_its_adapter_and_no_other_request_does(made: Callable[[int | None], Loads]) -> None:
    loads = made(None)
    loads.ask("")
    loads.ask("a")
    assert len(loads.running) == 1 and len(loads.loads) == 1
    assert loads.turn() == "a" and loads.memory == "a"
    loads.ask("a")
    assert len(loads.running) == 3


def test_the_one_used_longest_ago_leaves_and_comes_back(made: Callable[[int | None], Loads]) -> None:
    loads = made(25)
    for name in "ab":
        loads.ask(name)
    assert loads.turn() == "ab" and loads.memory == "ab"
    loads.running.clear()
    loads.ask("a")
    loads.running.clear()
    loads.ask("c")
    assert loads.turn() == "c" and loads.memory == "ac"
    loads.running.clear()
    loads.ask("b")
    assert loads.turn() == "b" and loads.memory == "bc"


def test_none_in_use_leaves_and_who_waits_for_room_is_not_overtaken(made: Callable[[int | None], Loads]) -> None:
    loads = made(25)
    for name in "ab":
        loads.ask(name)
    loads.turn()
    loads.ask("c")
    assert loads.turn() == "" and loads.memory == "ab"
    # Else those of a and b could keep c out for ever.
    loads.ask("a")
    assert loads.turn() == "" and len(loads.loads) == 2
    loads.running = [one for one in loads.running if one.submit.adapter != DIGESTS["b"]]
    assert loads.turn() == "ca" and loads.memory == "ac"


def test_what_was_left_while_it_waited_takes_no_room(made: Callable[[int | None], Loads]) -> None:
    loads = made(15)
    loads.ask("a")
    assert loads.turn() == "a"
    waiting = loads.ask("b")
    assert loads.turn() == ""
    assert loads.loads.cancel(waiting) and not loads.loads.cancel(waiting)
    loads.ask("a")
    loads.turn()
    assert loads.memory == "a" and not loads.loads.ready and len(loads.running) == 2


@pytest.mark.parametrize("memory", [None, 5])
def test_what_cannot_be_loaded_fails_its_requests(made: Callable[[int | None], Loads], memory: int | None) -> None:
    loads = made(memory)
    if memory is None:
        loads.files["/a"] = DIGESTS["b"]
        del loads.files["/b"]
    for name in "aab":
        loads.ask(name)
    assert loads.turn() == "" and loads.memory == "" and not loads.loads.waiting
    reasons = [reason for _, reason, status in loads.loads.failed if status == 503]
    words = ("--adapter-memory",) * 3 if memory else ("other files", "other files", "is gone")
    assert len(reasons) == 3 and all(word in reason for word, reason in zip(words, reasons, strict=True)), reasons
    assert loads.loads.checks.failed.keys() == {DIGESTS["a"], DIGESTS["b"]}


def test_an_adapter_without_a_name_leaves_memory_after_its_last_request(made: Callable[[int | None], Loads]) -> None:
    loads = made(None)
    for name in "ab":
        loads.ask(name)
    loads.turn()
    loads.known.unname("a")
    loads.retire()
    assert loads.memory == "ab" and not loads.left
    loads.running.pop(0)
    # One that waits for another worker asks for it, and does not use it yet.
    loads.loads.retire(lambda: [DIGESTS["a"]])
    assert loads.memory == "ab" and not loads.left
    loads.retire()
    assert loads.memory == "b" and loads.left == [DIGESTS["a"]] and DIGESTS["a"] not in loads.known.by_digest
    # Its number is free, and what is said of its files is not said of those that are there later.
    assert loads.known.learn("e", "ee" * 32, "/e").used.number == 0 and DIGESTS["a"] not in loads.loads.checks.loaded


def test_what_was_read_for_nobody_is_forgotten_with_its_adapter(made: Callable[[int | None], Loads]) -> None:
    loads = made(15)
    loads.ask("a")
    loads.turn()
    waiting = loads.ask("b")
    assert loads.turn() == "" and [*loads.loads.ready] == [DIGESTS["b"]]
    loads.known.unname("b")
    assert loads.loads.cancel(waiting)
    loads.retire()
    assert loads.turn() == "" and not loads.loads.ready and DIGESTS["b"] not in loads.known.by_digest


def test_any_number_of_unloaded_adapters_is_known_while_requests_ask_for_them(
    made: Callable[[int | None], Loads],
) -> None:
    """Requests of a hundred adapters wait for other workers when all names are unloaded: each is computed then."""
    loads = made(25)
    digests = [f"{number:064x}" for number in range(100)]
    for number, digest in enumerate(digests):
        loads.files[f"/{number}"] = digest
        loads.known.learn(str(number), digest, f"/{number}")
    for number in range(100):
        loads.known.unname(str(number))
    loads.loads.retire(lambda: digests)
    for digest in digests:
        request = cast(WorkerRequest, SimpleNamespace(submit=SimpleNamespace(adapter=digest), name="+"))
        assert not loads.loads.submit(request) and loads.turn() == "+"
        loads.running.clear()
    loads.retire()
    assert loads.known.by_digest.keys() == {*DIGESTS.values()} and not loads.loads.memory


def test_adapters_of_the_launch_stay_known_without_a_name(made: Callable[[int | None], Loads]) -> None:
    """Requests for them come without a directory, also those that a proxy sent before it heard of the unload."""
    loads = made(None)
    loads.known.of_launch = frozenset(DIGESTS.values())
    loads.ask("a")
    assert loads.turn() == "a"
    loads.running.clear()
    loads.known.unname("a")
    loads.retire()
    assert loads.memory == "" and not loads.known.nameless
    loads.ask("a")
    assert loads.turn() == "a" and loads.memory == "a"


class LoadLink:
    """A proxy that was registered with, and what it was told."""

    proxy, registration, takes_adapters = "p", ("p", 0), True

    def __init__(self) -> None:
        self.sent: list[AdapterState] = []

    def send(self, message: AdapterState) -> None:
        self.sent.append(message)


def table(**changes: tuple[int, str]) -> AdapterTable:
    digests = {name: DIGESTS.get(what, "") for name, (_, what) in changes.items()}
    directories = {name: f"/{what}" if what else "" for name, (_, what) in changes.items()}
    return AdapterTable("p", "w", {name: number for name, (number, _) in changes.items()}, digests, directories)


def test_a_proxy_is_told_what_became_of_its_changes(made: Callable[[int | None], Loads]) -> None:
    loads, link = made(None), LoadLink()
    adapters = WorkerAdapters("w", cast(ProxyLinks, SimpleNamespace(links=[link])), loads.loads, ("/a", "/b"))
    adapters.tick(loads.used)
    assert [one.changes for one in link.sent] == [{}], "a new proxy, of the names of the launch"
    adapters.take(table(x=(1, "a"), y=(2, "c"), z=(3, "b")))
    adapters.tick(loads.used)
    assert not link.sent[-1].loaded and link.sent[-1].failed == {"y": "/c is not in its --adapter-directory"}
    del loads.files["/b"]
    loads.turn()
    adapters.tick(loads.used)
    told = link.sent[-1]
    assert told.loaded == {"x": DIGESTS["a"]} and told.memory == [DIGESTS["a"]]
    assert told.failed.keys() == {"y", "z"} and "is gone" in told.failed["z"]
    count = len(link.sent)
    adapters.tick(loads.used)
    assert len(link.sent) == count, "nothing is new"
    # An older change changes nothing, but is answered; a proxy that begins anew is told all.
    adapters.take(table(x=(0, "b")))
    adapters.tick(loads.used)
    assert len(link.sent) == count + 1 and link.sent[-1].digests["x"] == DIGESTS["a"]
    link.proxy, link.registration = "q", ("q", 0)
    adapters.tick(loads.used)
    assert len(link.sent) == count + 2 and link.sent[-1].receiver == "q"
    del loads.known.by_name["a"]
    adapters.take(table(x=(4, "")))
    adapters.tick(loads.used)
    assert link.sent[-1].changes["x"] == 4 and not link.sent[-1].loaded and not link.sent[-1].memory


def test_a_request_brings_the_adapter_that_no_name_stands_for_any_more(made: Callable[[int | None], Loads]) -> None:
    loads = made(None)
    loads.known.by_name.clear()
    loads.known.by_digest.clear()
    adapters = WorkerAdapters("w", cast(ProxyLinks, SimpleNamespace(links=[])), loads.loads, ("/a", "/b"))
    digests = {"": "", "x": "../x"} | DIGESTS
    for name, directory in (("a", "/a"), ("b", ""), ("c", "/c"), ("d", "/a/../d"), ("", "/a"), ("x", "/a")):
        adapters.meet(Submit("p", "w", "r", 1, [5], {}, adapter=digests[name], adapter_directory=directory))
    assert loads.known.by_digest.keys() == {DIGESTS["a"]}
    loads.ask("a")
    assert loads.turn() == "a" and not loads.known.by_name
    loads.retire()
    assert loads.memory == "a"
    loads.running.clear()
    loads.retire()
    assert loads.memory == ""
