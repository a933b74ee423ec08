# SPDX-License-Identifier: Apache-2.0
"""Memory of a GPU that other processes of this host can open, and the order of copies in it."""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from pontil.gpu_ops.device_mark import DeviceLate, DeviceMark

# The size of an exported handle, in CUDA and in HIP.
HANDLE_BYTES = 64
# cudaIpcMemLazyEnablePeerAccess: the memory of another GPU can be opened too, where the two can reach each other.
LAZY_PEER_ACCESS = 1
# Room for domain, bus, device and function, and the end of the text.
PCI_TEXT = 32


class DeviceMemory(Protocol):
    """The memory of one device. All methods but `after` are called by the engine's thread."""

    def allocate(self, size: int) -> Tensor:
        """Return so many bytes of zeros on the device, uint8 [size], that `export` accepts. Raise MemoryError."""

    def free(self, memory: Tensor) -> None:
        """Give back what `allocate` returned. What was started on the device and may still use it is waited for.
        Raises DeviceLate."""

    def export(self, memory: Tensor) -> bytes:
        """Return HANDLE_BYTES by which another process can open what `allocate` returned."""

    def open(self, handle: bytes, size: int) -> Tensor:
        """Return another process's memory, uint8 [size]. Raise OSError if that cannot be opened here."""

    def close(self, opened: Tensor) -> None:
        """Give back what `open` returned, once nothing reads it any more."""

    def pci_address(self) -> str | None:
        """Return the device's address on its bus, such as 0000:17:00.0; None where that is not known."""

    def mark(self) -> Any:
        """Return the moment behind everything that was started on the device so far."""

    def after(self, mark: Any) -> AbstractContextManager[None]:
        """Run what a thread starts in this context after the mark, beside the engine's steps. On leaving the context it
        has ended. Raises DeviceLate, and so does the next `mark` then."""


class Handle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_char * HANDLE_BYTES)]


class Runtime(Protocol):
    """The functions of a GPU's runtime for memory, for the thread's current device. They raise OSError."""

    def malloc(self, size: int) -> int: ...
    def free(self, pointer: int) -> None: ...
    def handle_of(self, pointer: int) -> bytes: ...
    def open(self, handle: bytes) -> int: ...
    def close(self, pointer: int) -> None: ...
    def tensor(self, pointer: int, size: int, device: torch.device) -> Tensor: ...
    def pointer_of(self, memory: Tensor) -> int: ...
    def pci_address(self, device: int) -> str: ...


class LoadedRuntime:
    """The runtime that torch has loaded: CUDA's, or HIP's, which has the same functions under other names."""

    def __init__(self) -> None:
        if torch.version.hip:
            self.prefix, self.library = "hip", ctypes.CDLL("libamdhip64.so")
        else:
            major = (torch.version.cuda or "").partition(".")[0]
            self.prefix, self.library = "cuda", ctypes.CDLL(f"libcudart.so.{major}")

    def call(self, function: str, *arguments: Any) -> None:
        """Call a function of the runtime. Raise OSError with its error's number."""
        status = getattr(self.library, self.prefix + function)(*arguments)
        if status:
            raise OSError(f"{self.prefix}{function} failed with {status}")

    def malloc(self, size: int) -> int:
        pointer = ctypes.c_void_p()
        self.call("Malloc", ctypes.byref(pointer), ctypes.c_size_t(size))
        return int(pointer.value or 0)

    def free(self, pointer: int) -> None:
        self.call("Free", ctypes.c_void_p(pointer))

    def handle_of(self, pointer: int) -> bytes:
        handle = Handle()
        self.call("IpcGetMemHandle", ctypes.byref(handle), ctypes.c_void_p(pointer))
        return bytes(handle)

    def open(self, handle: bytes) -> int:
        pointer = ctypes.c_void_p()
        self.call("IpcOpenMemHandle", ctypes.byref(pointer), Handle.from_buffer_copy(handle), LAZY_PEER_ACCESS)
        return int(pointer.value or 0)

    def close(self, pointer: int) -> None:
        self.call("IpcCloseMemHandle", ctypes.c_void_p(pointer))

    def tensor(self, pointer: int, size: int, device: torch.device) -> Tensor:
        """Return memory that a device can reach as its own, uint8 [size]. By its address torch would find that it
        belongs to another one, and copy it."""
        storage = torch._C._construct_storage_from_data_pointer(pointer, device, size)
        return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)

    def pointer_of(self, memory: Tensor) -> int:
        return memory.data_ptr()

    def pci_address(self, device: int) -> str:
        text = ctypes.create_string_buffer(PCI_TEXT)
        self.call("DeviceGetPCIBusId", text, ctypes.c_int(PCI_TEXT), ctypes.c_int(device))
        return text.value.decode("ascii").lower()


# Tests have another runtime, whose devices are not there.
gpu_runtime: Callable[[], Runtime] = LoadedRuntime


class CudaMemory:
    """The memory of an NVIDIA GPU, or of an AMD one.

    The pool is allocated here and not by torch's allocator: a handle opens a whole allocation, and torch's may belong
    to several tensors.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.runtime = device, gpu_runtime()
        self.side = torch.cuda.Stream(device)
        self.late: DeviceLate | None = None

    def allocate(self, size: int) -> Tensor:
        try:
            with torch.cuda.device(self.device):
                pointer = self.runtime.malloc(size)
        except OSError as error:
            raise MemoryError(f"{size >> 20} MiB of KV memory cannot be had on {self.device} ({error})") from None
        tensor = self.runtime.tensor(pointer, size, self.device)
        tensor.zero_()
        return tensor

    def free(self, memory: Tensor) -> None:
        DeviceMark(self.device).wait()
        DeviceMark(self.device, self.side).wait()
        with torch.cuda.device(self.device):
            self.runtime.free(self.runtime.pointer_of(memory))

    def export(self, memory: Tensor) -> bytes:
        with torch.cuda.device(self.device):
            return self.runtime.handle_of(self.runtime.pointer_of(memory))

    def open(self, handle: bytes, size: int) -> Tensor:
        with torch.cuda.device(self.device):
            return self.runtime.tensor(self.runtime.open(handle), size, self.device)

    def close(self, opened: Tensor) -> None:
        with torch.cuda.device(self.device):
            self.runtime.close(self.runtime.pointer_of(opened))

    def pci_address(self) -> str | None:
        try:
            return self.runtime.pci_address(self.device.index or 0)
        except OSError:
            return None

    def mark(self) -> DeviceMark:
        if self.late is not None:
            raise DeviceLate(str(self.late))
        return DeviceMark(self.device)

    @contextmanager
    def after(self, mark: Any) -> Iterator[None]:
        with torch.cuda.device(self.device), torch.cuda.stream(self.side):
            try:
                # No wait in this context is for more than what is started there.
                mark.wait()
                self.side.wait_event(mark.event)
                try:
                    yield
                finally:
                    # A fault may leave something behind that still reads or writes.
                    DeviceMark(self.device, self.side).wait()
            except DeviceLate as error:
                # A copy that is not over may still write to blocks that the engine gives to others.
                self.late = error
                raise


def memory_of(device: torch.device) -> DeviceMemory | None:
    """Return the memory of a GPU; None for a CPU, whose memory every process can map."""
    return None if device.type == "cpu" else CudaMemory(device)
