# SPDX-License-Identifier: Apache-2.0
"""A device that is not there. Its tensors have shapes and addresses but no numbers, so that code which would wait for
the device to read one fails; so does code that computes with memory of the host. What it starts is recorded."""

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from pontil.gpu_ops.triton import launch
from pontil.runtime.engine.device.link import Arrival, HostWords, Words

COPIES = ("aten::copy_", "aten::_to_copy", "aten::to")


class HostTensorUsed(AssertionError):
    """Device code computed with a tensor in the host's memory."""


@functools.lru_cache(maxsize=1)
def pretend() -> torch.device:
    """The device, which is registered once for a process."""
    _setup_privateuseone_for_python_backend("pretend")
    return torch.device("pretend:0")


@dataclass
class DeviceTape:
    """The record of what code started: every operation and kernel, with its numbers and its tensors' shapes. A tensor
    that was there before has its address too. `to_device` and `to_host` count copies."""

    calls: list[Any] = field(default_factory=list)
    kernels: list[str] = field(default_factory=list)
    to_device: int = 0
    to_host: int = 0
    made: list[Tensor] = field(default_factory=list)
    own: set[int] = field(default_factory=set)

    def describe(self, one: Any) -> Any:
        if not isinstance(one, Tensor):
            return one if isinstance(one, int | float | str | bool | None) else str(one)
        shape = (tuple(one.shape), one.stride(), str(one.dtype))
        if not isinstance(one, FakeTensor) or one.device.type == "cpu":
            # The host's memory for copies alternates.
            return ("host", *shape)
        storage = one.untyped_storage()._cdata
        return ("made", *shape) if storage in self.own else (storage, one.storage_offset(), *shape)

    def call(self, name: str, arguments: Any) -> None:
        flat, _ = tree_flatten(arguments)
        self.calls.append((name, *(self.describe(one) for one in flat)))

    def keep(self, results: Any) -> None:
        """Note results, which stay, so that no address is given twice."""
        for one in tree_flatten(results)[0]:
            if isinstance(one, Tensor):
                self.made.append(one)
                self.own.add(one.untyped_storage()._cdata)


class PretendDevice(TorchDispatchMode):
    """Runs operations on the pretend device without numbers, and all others as they are."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.fake = FakeTensorMode()
        self.device, self.tape = pretend(), DeviceTape()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        flat = [one for one in tree_flatten((args, kwargs))[0] if isinstance(one, Tensor)]
        there = str(kwargs.get("device", "")).startswith("pretend")
        if not there and not any(isinstance(one, FakeTensor) for one in flat):
            return func(*args, **kwargs)
        name = func._schema.name
        if name == "prim::device":
            return args[0].device
        if name == "aten::copy_" and not isinstance(args[0], FakeTensor):
            self.tape.to_host += 1
            return args[0]
        theirs = [one for one in flat if not isinstance(one, FakeTensor) and one.dim() > 0]
        if theirs and name in COPIES:
            self.tape.to_device += 1
        elif theirs:
            raise HostTensorUsed(f"{func} was called with a tensor of the host")
        args, kwargs = tree_map(self.faked, (args, kwargs))
        self.tape.call(str(func), (args, kwargs))
        before = {one.untyped_storage()._cdata for one in flat if isinstance(one, FakeTensor)}
        with self.fake:
            result = func(*args, **kwargs)
        new = [
            one for one in tree_flatten(result)[0]
            if isinstance(one, Tensor) and one.untyped_storage()._cdata not in before
        ]  # fmt: skip
        self.tape.to_host += name in COPIES and result.device.type == "cpu"
        self.tape.keep(new)
        return result

    def faked(self, one: Any) -> Any:
        return self.fake.from_tensor(one) if isinstance(one, Tensor) and not isinstance(one, FakeTensor) else one

    @contextmanager
    def recording(self) -> Iterator[DeviceTape]:
        """Record what the block starts, kernels too."""
        before, starter = self.tape, launch.starter
        self.tape, launch.starter = DeviceTape(), self.start
        try:
            yield self.tape
        finally:
            self.tape, launch.starter = before, starter

    def start(self, kernel: Any, grid: launch.Grid, arguments: tuple[Any, ...], constants: dict[str, Any]) -> None:
        for one in arguments:
            if isinstance(one, Tensor) and not (isinstance(one, FakeTensor) and one.device.type == "pretend"):
                raise HostTensorUsed(f"{kernel} was started with a tensor of the host")
        name = kernel.fn.__name__ if hasattr(kernel, "fn") else str(kernel)
        self.tape.kernels.append(name)
        self.tape.call(name, (grid, arguments, constants))


class Zeros:
    """Results of a device without numbers."""

    def __init__(self, words: Words) -> None:
        self.words = words

    def wait(self) -> Words:
        return self.words


class PretendMemory:
    """The memory of the pretend device. No other process opens it, and nothing is copied beside the steps."""

    def allocate(self, size: int) -> Tensor:
        return torch.zeros(size, dtype=torch.uint8, device=pretend())

    def export(self, memory: Tensor) -> bytes:
        raise AssertionError("no other process opens this memory")

    def open(self, handle: bytes, size: int) -> Tensor:
        raise AssertionError("this memory opens no other")

    def close(self, opened: Tensor) -> None: ...

    def mark(self) -> None:
        raise AssertionError("nothing is copied beside the steps")

    def after(self, mark: None) -> AbstractContextManager[None]:
        raise AssertionError("nothing is copied beside the steps")


class PretendLink:
    """A link to the pretend device: results are zeros. A recorded step is a tape."""

    def __init__(self, there: PretendDevice) -> None:
        self.there, self.device = there, there.device
        self.replays = self.settled = self.captures = 0
        self.held = 1000

    def host_words(self, count: int) -> HostWords:
        made = torch.zeros(count, dtype=torch.int32)
        return HostWords(made.numpy(), made)

    def send(self, source: HostWords, target: Tensor) -> None:
        target.copy_(source.tensor[: len(target)], non_blocking=True)

    def fetch(self, source: Tensor, target: HostWords) -> Arrival:
        target.tensor[: len(source)].copy_(source, non_blocking=True)
        return Zeros(np.zeros(len(source), np.int32))

    def settle(self) -> None:
        self.settled += 1

    def capture(self, run: Callable[[], Tensor], pool: Any) -> tuple[Callable[[], None], Tensor, Any]:
        with self.there.recording() as first:
            result = run()
        with self.there.recording() as again:
            run()
        assert first.calls == again.calls, "a recorded step would read other addresses"
        assert not first.to_device and not first.to_host, "a recorded step copies to or from the host"
        self.held += 500
        self.captures += 1

        def replay() -> None:
            self.replays += 1

        return replay, result, pool or object()

    def reserved(self) -> int:
        return self.held
