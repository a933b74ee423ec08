# SPDX-License-Identifier: Apache-2.0
"""A driver of devices that are not there, as strict as a real one: each thread has a current device, streams go on
beside each other, and what is started on one is behind what was started on another only where an event says so.

Where a real driver would corrupt memory, or use another device than was meant, this one raises DriverFault. It stands
in for the parts of `torch.cuda` that the product uses. Pieces of memory are numbers.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch


class DriverFault(AssertionError):
    """Something that a device would do wrong without a word, or a capture would refuse."""


@dataclass(eq=False)
class Reached:
    """The number of the last thing, on each stream, that has surely ended."""

    numbers: dict["StrictStream", int] = field(default_factory=dict)

    def join(self, other: "Reached") -> None:
        for stream, number in other.numbers.items():
            self.numbers[stream] = max(number, self.numbers.get(stream, 0))

    def covers(self, moment: "Moment") -> bool:
        return self.numbers.get(moment.stream, 0) >= moment.number

    def copy(self) -> "Reached":
        return Reached(dict(self.numbers))


@dataclass(frozen=True, slots=True)
class Moment:
    """One thing that was started on a stream."""

    stream: "StrictStream"
    number: int


class StrictStream:
    """A stream of a device, as torch.cuda.Stream. What is started on it is behind all that `behind` covers."""

    def __init__(self, driver: "StrictDriver", device: torch.device | int | str | None = None) -> None:
        self.driver, self.device = driver, driver.device_of(device)
        self.behind, self.started = Reached(), 0

    def __repr__(self) -> str:
        return f"stream {self.driver.streams.index(self)} of {self.device}"

    def start(self) -> Moment:
        """Start something. All that the host has waited for has ended before."""
        self.behind.join(self.driver.own.waited)
        self.started += 1
        self.behind.numbers[self] = self.started
        return Moment(self, self.started)

    def wait_event(self, event: "StrictEvent") -> None:
        self.behind.join(event.clock)

    def wait_stream(self, stream: "StrictStream") -> None:
        self.behind.join(stream.behind)

    def synchronize(self) -> None:
        raise DriverFault(f"the host waits for {self} without a deadline")


class StrictEvent:
    """An event, as torch.cuda.Event: without a stream it is recorded on the current one of the current device."""

    def __init__(self, driver: "StrictDriver") -> None:
        self.driver, self.clock = driver, Reached()
        self.device: torch.device | None = None

    def record(self, stream: StrictStream | None = None) -> None:
        stream = stream or self.driver.current_stream()
        if self.device not in (None, stream.device):
            raise DriverFault(f"an event of {self.device} is recorded on {stream}")
        self.device, self.clock = stream.device, stream.behind.copy()

    def query(self) -> bool:
        return self.driver.has_ended(self.clock)

    def synchronize(self) -> None:
        raise DriverFault("the host waits for an event without a deadline")


@dataclass
class Uses:
    """The last write to a piece of memory, and the last read since on each stream."""

    written: Moment | None = None
    read: dict[StrictStream, Moment] = field(default_factory=dict)

    @property
    def moments(self) -> list[Moment]:
        return [*self.read.values(), *([] if self.written is None else [self.written])]


@dataclass(eq=False)
class StrictGraph:
    """A recorded piece of work, as torch.cuda.CUDAGraph: `calls` as they were described, and the memory that it uses.
    What it did not make itself is `foreign`: references that tell whether it is still there."""

    driver: "StrictDriver"
    device: torch.device | None = None
    calls: list[Any] = field(default_factory=list)
    uses: list[tuple[int, bool]] = field(default_factory=list)
    foreign: list[Any] = field(default_factory=list)
    # Called at each start: the parts of the work in which other devices take part.
    replayed: list[Callable[["Moment"], None]] = field(default_factory=list)
    memory: Any = None
    is_over: bool = False

    def pool(self) -> Any:
        return self.memory

    def reset(self) -> None:
        """End the recording, which holds nothing any more."""
        self.driver.refuse_in_capture("the end of a recording")
        self.is_over, self.memory = True, None
        for held in (self.calls, self.uses, self.foreign, self.replayed):
            held.clear()

    def replay(self) -> None:
        driver = self.driver
        if self.is_over:
            raise DriverFault("a recorded step is started that was given up")
        if driver.current_device() != self.device:
            raise DriverFault(f"what was recorded on {self.device} is started on {driver.current_device()}")
        if any(one.expired() for one in self.foreign):
            raise DriverFault("a recorded step uses memory that was given back")
        driver.replays += 1
        stream = driver.current_stream()
        for memory, writes in self.uses:
            if memory in driver.freed:
                raise DriverFault("a recorded step uses memory that was given back")
            driver.use(memory, stream, writes)
        for take_part in self.replayed:
            take_part(stream.start())


@dataclass
class ThreadState:
    """A thread's current device, its current streams by device, and what it has waited for."""

    device: int = 0
    streams: dict[int, StrictStream] = field(default_factory=dict)
    waited: Reached = field(default_factory=Reached)
    # The recording that it makes, and the stream of that.
    capturing: StrictGraph | None = None
    capture_stream: StrictStream | None = None


class StrictDriver:
    """`count` devices of one type. `describe` returns the calls that are recorded since a capture began."""

    def __init__(self, kind: str = "pretend", count: int = 2) -> None:
        self.kind, self.count = kind, count
        self.local = threading.local()
        self.streams: list[StrictStream] = []
        self.first_streams = {number: self.stream(number) for number in range(count)}
        self.uses: dict[int, Uses] = {}
        # Memory of pools: blocks of one are written while others are read, and only its end is watched.
        self.pools: set[int] = set()
        self.freed: set[int] = set()
        # Copies to the host, which arrive when somebody waits for them.
        self.arriving: list[tuple[Moment, Callable[[], object]]] = []
        # Called with what a thread is about to wait for: whether it ends.
        self.before_wait: Callable[[Reached], bool] = lambda clock: True
        # The recordings that are being made, with their modes.
        self.open_captures: dict[StrictGraph, str] = {}
        self.replays = self.captures = self.waits = 0

    @property
    def own(self) -> ThreadState:
        """The calling thread's state: a new thread begins with the first device, as in CUDA."""
        if not hasattr(self.local, "state"):
            self.local.state = ThreadState()
        state: ThreadState = self.local.state
        return state

    @property
    def capturing(self) -> StrictGraph | None:
        """The recording that the calling thread makes."""
        return self.own.capturing

    def device_of(self, device: torch.device | int | str | None) -> torch.device:
        if isinstance(device, int):
            return torch.device(self.kind, device)
        found = torch.device(device) if device is not None else self.current_device()
        return found if found.index is not None else self.current_device()

    # The functions of torch.cuda.

    def current_device(self) -> torch.device:
        return torch.device(self.kind, self.own.device)

    def set_device(self, device: torch.device | int | str) -> None:
        found = self.device_of(device)
        assert found.index is not None and found.index < self.count, f"there is no {found}"
        self.own.device = found.index

    @contextmanager
    def device(self, device: torch.device | int | str) -> Iterator[None]:
        before = self.own.device
        self.set_device(device)
        try:
            yield
        finally:
            self.own.device = before

    def stream(self, device: torch.device | int | str | None = None) -> StrictStream:
        made = StrictStream(self, device)
        self.streams.append(made)
        return made

    def event(self) -> StrictEvent:
        return StrictEvent(self)

    def current_stream(self, device: torch.device | int | str | None = None) -> StrictStream:
        number = self.device_of(device).index
        assert number is not None
        return self.own.streams.get(number, self.first_streams[number])

    @contextmanager
    def on(self, stream: StrictStream) -> Iterator[None]:
        """torch.cuda.stream: the stream is the current one of its device, which is the current device."""
        number = stream.device.index
        assert number is not None
        before = self.own.streams.get(number)
        with self.device(stream.device):
            self.own.streams[number] = stream
            try:
                yield
            finally:
                if before is None:
                    del self.own.streams[number]
                else:
                    self.own.streams[number] = before

    def graph(self) -> StrictGraph:
        return StrictGraph(self)

    @contextmanager
    def capture(self, graph: StrictGraph, pool: Any, mode: str) -> Iterator[None]:
        """torch.cuda.graph: record what is started on the current device."""
        own = self.own
        assert own.capturing is None
        graph.device, graph.memory = self.current_device(), pool or object()
        for stream in self.streams:
            if stream.device == graph.device:
                self.wait(stream.behind)
        own.capturing, own.capture_stream = graph, self.stream(graph.device)
        self.open_captures[graph] = mode
        self.captures += 1
        try:
            with self.on(own.capture_stream):
                yield
        finally:
            own.capturing = own.capture_stream = None
            del self.open_captures[graph]

    # The work that was started.

    def wait(self, clock: Reached) -> None:
        """Have the calling thread wait until all that the clock covers has ended."""
        if not self.has_ended(clock):
            raise DriverFault("the host waits without a deadline for a device that hangs")

    def has_ended(self, clock: Reached) -> bool:
        """Have the calling thread look whether all that the clock covers has ended. It has, unless something hangs."""
        self.refuse_in_capture("waiting for the device")
        if not self.before_wait(clock):
            return False
        self.waits += 1
        self.own.waited.join(clock)
        here, self.arriving = (
            [one for one in self.arriving if clock.covers(one[0])],
            [one for one in self.arriving if not clock.covers(one[0])],
        )
        for _, arrive in here:
            arrive()
        return True

    def refuse_in_capture(self, what: str) -> None:
        if self.capturing is not None:
            raise DriverFault(f"{what} while a step is recorded")
        if "global" in self.open_captures.values():
            raise DriverFault(f"{what} in a thread while another one records a step, which is invalid then")

    def started_on(self, device: torch.device, uses: Sequence[tuple[int, bool]]) -> Moment | None:
        """Start something on the current stream of a device that uses memory, each (memory, whether it is written).
        While a step is recorded it is part of that, and nothing starts."""
        stream = self.current_stream(device)
        graph = self.capturing
        if graph is not None:
            if stream is not self.own.capture_stream:
                raise DriverFault(f"something is started on {stream} while a step of {graph.device} is recorded")
            graph.uses += uses
            return None
        moment = stream.start()
        for memory, writes in uses:
            self.use(memory, stream, writes, moment)
        return moment

    def use(self, memory: int, stream: StrictStream, writes: bool, moment: Moment | None = None) -> None:
        """Check that what was started before has ended where it must have."""
        moment = moment or stream.start()
        if memory in self.freed:
            raise DriverFault(f"{stream} uses memory that was given back")
        own = self.uses.setdefault(memory, Uses())
        if memory not in self.pools:
            for other in own.moments if writes else [own.written]:
                if other is not None and not stream.behind.covers(other):
                    verb = "writes to" if writes else "reads"
                    raise DriverFault(f"{stream} {verb} what {other.stream} may still use")
        if writes and memory not in self.pools:
            self.uses[memory] = Uses(moment)
        else:
            own.read[stream] = moment

    def host_may_write(self, memory: int) -> None:
        """Check that nothing that the calling thread has not waited for still uses the host's memory."""
        for moment in self.uses.get(memory, Uses()).moments:
            if not self.own.waited.covers(moment):
                raise DriverFault(f"the host writes to memory that {moment.stream} may still use")

    def give_back(self, memory: int) -> None:
        """End a piece of memory, which nothing may still use."""
        self.refuse_in_capture("giving memory back")
        self.check_ended(memory)
        self.freed.add(memory)

    def check_ended(self, memory: int) -> None:
        """Check that nothing may still use a piece of memory that is unmapped."""
        for moment in self.uses.get(memory, Uses()).moments:
            if not self.own.waited.covers(moment):
                raise DriverFault(f"memory is given back that {moment.stream} may still use")
