# SPDX-License-Identifier: Apache-2.0
"""Packed weights that stay where they are when somebody cuts off or overwrites their file (docs/decisions/089)."""

import logging
import os
import signal
from contextlib import ExitStack

from pontil.gpu_ops.kernels.weights.file_memory import MappedFile
from pontil.gpu_ops.kernels.weights.packed_file import PackedFileError
from pontil.runtime.threads import ThreadFailures, TurnThread
from pontil.runtime.worker.start.packed_copy import break_time, copy_of

logger = logging.getLogger("pontil.worker")

# Seconds between two looks at a lease.
LOOK = 1.0


class PackedGuard:
    """Read leases on the files that a process maps. Who opens such a file to write, or cuts it off, is held up by the
    system until the process maps a copy instead and hands the lease back. What is changed then is a file that has no
    name any more, and that nobody maps."""

    def __init__(self, *files: MappedFile | None) -> None:
        # Without those for which there can be no lease.
        self.files = [file for file in files if file is not None]
        self.refused: set[MappedFile] = set()
        self.thread: TurnThread | None = None

    def begin(self, opened: ExitStack, failures: ThreadFailures) -> None:
        """Guard the files until that is closed."""
        if self.files:
            self.thread = TurnThread(self.turn, "packed-weights", failures, end=self.hand_back)
            opened.callback(self.close)
            self.thread.start()

    def close(self) -> None:
        if self.thread is not None:
            self.thread.close()

    def turn(self) -> float | None:
        """Look at all leases, and take those that are not held. Return when to look again."""
        moved = [self.has_moved(file) for file in list(self.files)]
        if not self.files or (self.thread is not None and self.thread.closing.is_set()):
            return None
        return 0.0 if any(moved) else LOOK

    def has_moved(self, mapped: MappedFile) -> bool:
        """Have a copy mapped if somebody wants to write to the file, or others have moved to a copy before this process
        had a lease."""
        if mapped.leased:
            return mapped.is_wanted and self.move(mapped)
        try:
            mapped.take_lease()
        except BlockingIOError as error:
            if mapped.is_replaced:
                return self.move(mapped)
            self.tell(mapped, error)
        except OSError as error:
            self.tell(mapped, error)
            self.files.remove(mapped)
        return False

    def tell(self, mapped: MappedFile, error: OSError) -> None:
        """Say once that a file is not guarded."""
        if mapped not in self.refused:
            self.refused.add(mapped)
            logger.info("who cuts off %s ends this worker: the system gives no lease on it: %s", mapped.path, error)

    def move(self, mapped: MappedFile) -> bool:
        """Map a copy, and hand the lease back. Without a copy the process ends, and only with it the lease."""
        try:
            copy, what = copy_of(mapped, break_time())
            mapped.move(copy)
        except (OSError, PackedFileError) as error:
            self.files.remove(mapped)
            logger.error("somebody writes to %s, and this worker ends: there is no copy: %s", mapped.path, error)
            os.kill(os.getpid(), signal.SIGTERM)
            return False
        logger.warning("somebody writes to %s: this worker maps %s now", mapped.path, what)
        return True

    def hand_back(self) -> None:
        for mapped in self.files:
            mapped.hand_back()
