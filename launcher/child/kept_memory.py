# SPDX-License-Identifier: Apache-2.0
"""Memory of a worker that outlives its processes: the launcher holds its files open, and gives them to the next one.

The launcher knows nothing of what is in them. They are anonymous, so nothing is left of them once it has ended.
"""

import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress

from pontil.launcher.child.exit_cause import ExitCause, ExitKind
from pontil.launcher.host.devices import CPU
from pontil.launcher.host.service_port import NOTHING
from pontil.launcher.plan.child_plan import ChildPlan

# The keys of a configuration that decide what is packed.
RANKS = ("rank", "ranks", "data_parallel_rank", "data_parallel_size")
DECIDING = ("quantization", "dtype", "kernels", "node", "tensor_parallel_arithmetic", *RANKS)
MODELS = ("model", "speculative_model")
# The most parts that a stage has beside its model.
PARTS = 2


class SharedWeights:
    """Anonymous files by the model that they are for, and by what else decides its weights. One that is not used takes
    no memory."""

    def __init__(self) -> None:
        self.files: dict[tuple[object, ...], int] = {}

    def handed(self, member: ChildPlan) -> Mapping[str, Sequence[int]]:
        """Return the descriptors for one rank of a worker: for its model, for what guesses for it, and for the parts
        beside a stage's model. None on a GPU; and none where the system gives no files."""
        if not member.computes or member.device != CPU:
            return NOTHING
        names = [(member.config[key], number) for number, key in enumerate(MODELS) if member.config.get(key)]
        if member.config.get("node"):
            names += [(member.config["model"], len(MODELS) + part) for part in range(PARTS)]
        deciding = tuple(member.config.get(key) for key in DECIDING)
        try:
            return {"weights_memory": [self.file((*name, *deciding)) for name in names]}
        except OSError:
            return NOTHING

    def file(self, key: tuple[object, ...]) -> int:
        if key not in self.files:
            self.files[key] = os.memfd_create("pontil-weights", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        return self.files[key]

    def close(self) -> None:
        """Give the memory up. Its last user's end frees it."""
        for file in self.files.values():
            with suppress(OSError):
                os.close(file)
        self.files = {}


# Bytes of a block of a file, whatever the file system's are (stat(2)).
BLOCK = 512
# Files of each rank: its KV blocks, and their records.
NAMES = ("pontil-kv", "pontil-kv-records")
# A worker that ends by itself within so many seconds of serving with memory that it took over gets new memory: the old
# may be why. It is longer than the mean time between deaths at which the restart policy gives a worker up.
TRUSTED_AFTER = 30.0


class KeptMemory:
    """The files of a worker of so many ranks, made when its first process starts; of none, nothing is kept."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.files: list[tuple[int, ...]] = []
        # The number of the worker's starts with these files.
        self.starts = 0

    def begin(self) -> Sequence[tuple[int, ...]]:
        """Return the descriptors for each rank of a worker that starts now; none where nothing is kept. Where the
        system gives no files, the worker has memory of its own."""
        if not self.files:
            self.starts = 0
            try:
                for _ in range(self.ranks):
                    self.files.append(())
                    for name in NAMES:
                        self.files[-1] += (os.memfd_create(name, os.MFD_CLOEXEC),)
            except OSError:
                self.close()
        self.starts += 1
        return self.files

    def end(self, cause: ExitCause, seconds: float | None) -> None:
        """Keep or give up the memory after the worker's end. It had served for so many seconds, or (None) never."""
        if not may_be_kept(cause, self.starts > 1, seconds):
            self.close()

    @property
    def held_bytes(self) -> int:
        """The bytes of memory that the files take now."""
        return sum(os.fstat(file).st_blocks * BLOCK for files in self.files for file in files)

    def close(self) -> None:
        """Give the memory up. Its last user's end frees it."""
        for file in (file for files in self.files for file in files):
            with suppress(OSError):
                os.close(file)
        self.files = []


def may_be_kept(cause: ExitCause, taken_over: bool, seconds: float | None) -> bool:
    """Return whether the next process may have the memory. Not after a death for want of memory, which the kernel could
    not have again; and not if a process that had `taken_over` the memory never served, or died at once by itself. A
    signal of somebody else is no fault of the memory."""
    if cause.starved or cause.code == -signal.SIGBUS:
        return False
    is_killed = cause.cause is ExitKind.SIGNAL
    return not taken_over or (seconds is not None and (is_killed or seconds >= TRUSTED_AFTER))
