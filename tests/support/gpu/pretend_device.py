# SPDX-License-Identifier: Apache-2.0
"""Devices that are not there. Their tensors have shapes and addresses but no numbers, so that code which would wait for
a device to read one fails; so does code that computes with memory of the host, and what the driver refuses
(`strict_driver.py`). What is started is recorded."""

import functools
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from pretend_memory import DeviceRoom, RecordedMemory
from strict_driver import DriverFault, StrictDriver, StrictGraph
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from pontil.gpu_ops.triton import launch
from pontil.runtime.cache import device_memory
from pontil.runtime.cache.device_memory import HANDLE_BYTES
from pontil.runtime.engine.device import link

COPIES = ("aten::copy_", "aten::_to_copy", "aten::to")


# The words of memory in which nothing has arrived yet.
NOT_THERE = -7_777_777


class HostTensorUsed(AssertionError):
    """Device code computed with a tensor in the host's memory."""


def flattened(given: Any) -> list[Any]:
    """Return the leaves of arguments, in order. torch's own search takes longer than the operations that it is for."""
    if isinstance(given, dict):
        given = tuple(given.values())
    if not isinstance(given, list | tuple):
        return [given]
    found = []
    for one in given:
        if isinstance(one, list | tuple | dict):
            found += flattened(one)
        else:
            found.append(one)
    return found


@functools.lru_cache(maxsize=1)
def pretend() -> torch.device:
    """The device, which is registered once for a process."""
    _setup_privateuseone_for_python_backend("pretend")
    return torch.device("pretend:0")


class Places:
    """A number for each piece of memory, which no later one gets."""

    def __init__(self) -> None:
        self.known: dict[int, tuple[StorageWeakRef, int]] = {}
        self.given = 0

    def __call__(self, one: Tensor) -> int:
        storage = one.untyped_storage()
        found = self.known.get(storage._cdata)
        if found is None or found[0].expired():
            self.given += 1
            found = self.known[storage._cdata] = (StorageWeakRef(storage), self.given)
        return found[1]


@dataclass
class DeviceTape:
    """The record of what code started: every operation and kernel, with its numbers and its tensors' shapes. A tensor
    that was there before has its address too. `to_device` and `to_host` count copies."""

    places: Places
    calls: list[Any] = field(default_factory=list)
    kernels: list[str] = field(default_factory=list)
    to_device: int = 0
    to_host: int = 0
    own: set[int] = field(default_factory=set)

    def describe(self, one: Any) -> Any:
        if not isinstance(one, Tensor):
            return one if isinstance(one, int | float | str | bool | None) else str(one)
        shape = (tuple(one.shape), one.stride(), str(one.dtype))
        if not isinstance(one, FakeTensor) or one.device.type == "cpu":
            # The host's memory for copies alternates.
            return ("host", *shape)
        place = self.places(one)
        return ("made", *shape) if place in self.own else (place, one.storage_offset(), *shape)

    def call(self, name: str, arguments: Any) -> None:
        self.calls.append((name, *(self.describe(one) for one in flattened(arguments))))


class PretendDevice(TorchDispatchMode):
    """Runs operations on pretend devices without numbers, and all others as they are. While it is entered, what the
    product uses of torch.cuda is the strict driver's."""

    def __init__(self, device: int = 0, memory: int = 1 << 40) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        pretend()
        self.fake = FakeTensorMode()
        self.driver, self.places = StrictDriver(), Places()
        # The record of a thread that makes one of its own, and of all others.
        self.own, self.common = threading.local(), DeviceTape(self.places)
        self.device = torch.device("pretend", device)
        # The host's memory that devices copy from and to; it stays.
        self.pinned: dict[int, Tensor] = {}
        self.rooms = [DeviceRoom(memory) for _ in range(self.driver.count)]
        self.allocated: dict[int, Tensor] = {}
        # Of opened handles, whose memory each is.
        self.opened: dict[int, int] = {}
        self.patches, self.entered = ExitStack(), 0

    @property
    def room(self) -> DeviceRoom:
        """The memory of the device that this one is."""
        return self.room_of(self.device)

    def room_of(self, device: torch.device) -> DeviceRoom:
        assert device.index is not None
        return self.rooms[device.index]

    @property
    def tape(self) -> DeviceTape:
        tape: DeviceTape = getattr(self.own, "tape", self.common)
        return tape

    def __enter__(self) -> "PretendDevice":
        """Enter it in this thread; several threads may be in it."""
        if not self.entered:
            self.stand_in()
        self.entered += 1
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def stand_in(self) -> None:
        driver, room_of = self.driver, self.room_of
        functions: dict[str, Any] = {
            "current_device": lambda: driver.current_device().index, "set_device": driver.set_device,
            "device": driver.device, "Stream": driver.stream, "Event": driver.event, "stream": driver.on,
            "current_stream": driver.current_stream, "CUDAGraph": driver.graph, "graph": self.capture,
            "memory_reserved": lambda device: room_of(device).taken(), "empty_cache": lambda: None,
            "mem_get_info": lambda device: room_of(device).info,
        }  # fmt: skip
        self.patches.enter_context(patch.multiple(torch.cuda, **functions))
        self.patches.enter_context(patch.object(link, "pinned_words", self.pinned_words))
        self.patches.enter_context(patch.object(launch, "starter", self.start))
        self.patches.enter_context(patch.object(device_memory, "gpu_runtime", lambda: PretendRuntime(self)))

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)  # type: ignore[no-untyped-call]
        self.entered -= 1
        if not self.entered:
            self.patches.close()

    def pinned_words(self, count: int) -> Tensor:
        made = torch.zeros(count, dtype=torch.int32)
        self.pinned[self.places(made)] = made
        return made

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        flat = [one for one in flattened((args, kwargs)) if isinstance(one, Tensor)]
        there = str(kwargs.get("device", "")).startswith("pretend")
        if not there and not any(isinstance(one, FakeTensor) for one in flat):
            return func(*args, **kwargs)
        name = func._schema.name
        if name == "prim::device":
            return args[0].device
        if name == "aten::copy_" and not isinstance(args[0], FakeTensor):
            return self.to_host(args[0], args[1], kwargs.get("non_blocking", len(args) > 2 and args[2]))
        theirs = [one for one in flat if not isinstance(one, FakeTensor) and one.dim() > 0]
        if theirs and name in COPIES:
            self.to_device(theirs)
        elif theirs:
            raise HostTensorUsed(f"{func} was called with a tensor of the host")
        if any(not isinstance(one, FakeTensor) for one in flat):
            args, kwargs = tree_map(self.faked, (args, kwargs))
        self.tape.call(str(func), (args, kwargs))
        before = {self.places(one) for one in flat if isinstance(one, FakeTensor)}
        with self.fake:
            result = func(*args, **kwargs)
        new = [
            one for one in flattened(result)
            if isinstance(one, Tensor) and self.places(one) not in before
        ]  # fmt: skip
        if name in COPIES and result.device.type == "cpu":
            self.tape.to_host += 1
            self.driver.wait(self.driver.current_stream(args[0].device).behind)
        for one in new:
            if one.device.type == "pretend":
                self.room_of(one.device).take(one)
        self.tape.own.update(self.places(one) for one in new)
        self.note_uses(func, args, kwargs, new, theirs)
        return result

    def note_uses(self, func: Any, args: Any, kwargs: Any, new: list[Tensor], theirs: list[Tensor]) -> None:
        """Tell the driver what was started. Views start nothing."""
        written = {
            id(one) for argument, one in zip(func._schema.arguments, args, strict=False)
            if argument.alias_info is not None and argument.alias_info.is_write
        }  # fmt: skip
        flat = [one for one in flattened((args, kwargs)) if isinstance(one, FakeTensor)]
        if self.driver.capturing is not None:
            self.note_foreign(self.driver.capturing, flat)
        uses = [(self.places(one), id(one) in written or one is kwargs.get("out")) for one in flat]
        uses += [(self.places(one), True) for one in new]
        devices = {one.device for one in (*flat, *new) if one.device.type == "pretend"}
        if func.is_view or not devices:
            return
        uses += [(self.places(one), False) for one in theirs if self.places(one) in self.pinned]
        self.driver.started_on(devices.pop(), uses)

    def note_foreign(self, graph: StrictGraph, tensors: Sequence[Tensor]) -> None:
        """Note memory that a recording uses and did not make."""
        for one in tensors:
            if self.places(one) not in self.tape.own:
                graph.foreign.append(StorageWeakRef(one.untyped_storage()))

    def to_device(self, sources: list[Tensor]) -> None:
        self.tape.to_device += 1
        for one in sources:
            if self.places(one) in self.pinned:
                # The host has just written there.
                self.driver.host_may_write(self.places(one))
            else:
                self.driver.refuse_in_capture("a copy from memory that is not pinned")

    def to_host(self, target: Tensor, source: Tensor, goes_on: bool) -> Tensor:
        """Copy to the host's memory, which holds nothing of use until the copy is waited for."""
        self.tape.to_host += 1
        stream = self.driver.current_stream(source.device)
        pinned = goes_on and self.places(target) in self.pinned
        uses = [(self.places(source), False), *([(self.places(target), True)] if pinned else [])]
        self.driver.refuse_in_capture("a copy to the host")
        moment = self.driver.started_on(source.device, uses)
        if pinned and moment is not None:
            target.fill_(NOT_THERE)
            self.driver.arriving.append((moment, target.zero_))
        else:
            self.driver.wait(stream.behind)
            target.zero_()
        return target

    def faked(self, one: Any) -> Any:
        return self.fake.from_tensor(one) if isinstance(one, Tensor) and not isinstance(one, FakeTensor) else one

    @contextmanager
    def recording(self) -> Iterator[DeviceTape]:
        """Record what the block starts in this thread, kernels too."""
        before, made = self.tape, DeviceTape(self.places)
        self.own.tape = made
        try:
            yield made
        finally:
            self.own.tape = before

    @contextmanager
    def capture(self, graph: StrictGraph, pool: Any = None, *, capture_error_mode: str = "global") -> Iterator[None]:
        """torch.cuda.graph. What is recorded keeps its memory in the pool, which the next recording uses again."""
        room = self.room_of(self.driver.current_device())
        before = room.peak = room.taken()
        with self.driver.capture(graph, pool or RecordedMemory(), capture_error_mode), self.recording() as tape:
            yield
        graph.calls = tape.calls
        assert not tape.to_device and not tape.to_host, "a recorded step copies to or from the host"
        graph.memory.bytes = max(graph.memory.bytes, room.peak - before)
        room.pools.add(graph.memory)

    def start(self, kernel: Any, grid: launch.Grid, arguments: tuple[Any, ...], constants: dict[str, Any]) -> None:
        """Start a kernel, on the current device as Triton does. Which of its tensors it writes to is not known: all
        but those that many read at once."""
        uses = []
        for one in arguments:
            if isinstance(one, Tensor):
                if not (isinstance(one, FakeTensor) and one.device.type == "pretend"):
                    raise HostTensorUsed(f"{kernel} was started with a tensor of the host")
                if one.device != self.driver.current_device():
                    raise DriverFault(
                        f"{kernel} is started on {self.driver.current_device()} with a tensor of {one.device}"
                    )
                uses.append((self.places(one), True))
        name = kernel.fn.__name__ if hasattr(kernel, "fn") else str(kernel)
        if self.driver.capturing is not None:
            self.note_foreign(self.driver.capturing, [one for one in arguments if isinstance(one, Tensor)])
        self.tape.kernels.append(name)
        self.tape.call(name, (grid, arguments, constants))
        self.driver.started_on(self.driver.current_device(), uses)


class PretendRuntime:
    """The runtime's functions for memory that other processes open, which here are this one. An opened handle is memory
    at an address of its own, which the device that opened it can reach. It ends when that one closes it; until then its
    owner must keep the memory."""

    def __init__(self, there: PretendDevice) -> None:
        self.there = there

    def malloc(self, size: int) -> int:
        self.there.driver.refuse_in_capture("taking memory")
        try:
            made = torch.zeros(size, dtype=torch.uint8, device=self.there.driver.current_device())
        except torch.OutOfMemoryError as error:
            raise OSError("cudaMalloc failed with 2") from error
        return self.hold(made)

    def hold(self, made: Tensor) -> int:
        pointer = self.there.places(made)
        self.there.allocated[pointer] = made
        self.there.driver.pools.add(pointer)
        # Nothing was started.
        self.there.driver.uses.pop(pointer, None)
        return pointer

    def free(self, pointer: int) -> None:
        if pointer not in self.there.allocated or pointer in self.there.opened:
            raise DriverFault("memory is given back that was not taken here, or was given back before")
        if pointer in self.there.opened.values():
            raise DriverFault("memory is given back that another process has open")
        self.there.driver.give_back(pointer)
        del self.there.allocated[pointer]

    def handle_of(self, pointer: int) -> bytes:
        assert pointer in self.there.allocated, "only a whole allocation has a handle"
        return pointer.to_bytes(HANDLE_BYTES, "little")

    def open(self, handle: bytes) -> int:
        owner = int.from_bytes(handle, "little")
        if owner not in self.there.allocated:
            raise OSError("the memory is gone")
        with self.there.fake:
            size = len(self.there.allocated[owner])
            made = torch.empty(size, dtype=torch.uint8, device=self.there.driver.current_device())
        pointer = self.hold(made)
        self.there.opened[pointer] = owner
        return pointer

    def close(self, pointer: int) -> None:
        if pointer not in self.there.opened:
            raise DriverFault("a handle is closed that is not open")
        self.check_reached(pointer, self.there.driver.current_device())
        self.there.driver.give_back(pointer)
        del self.there.allocated[pointer], self.there.opened[pointer]

    def tensor(self, pointer: int, size: int, device: torch.device) -> Tensor:
        self.check_reached(pointer, device)
        return self.there.allocated[pointer][:size]

    def check_reached(self, pointer: int, device: torch.device) -> None:
        made = self.there.allocated[pointer]
        if made.device != device:
            raise DriverFault(f"memory that {made.device} has taken or opened is used by {device}")

    def pointer_of(self, memory: Tensor) -> int:
        return self.there.places(memory)

    def pci_address(self, device: int) -> str:
        return f"0000:{0x17 + device:02x}:00.0"
