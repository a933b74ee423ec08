# SPDX-License-Identifier: Apache-2.0
"""The end of a worker's group of ranks."""

import logging

from pontil.gpu_ops.collectives.communicator import Communicator
from pontil.runtime.threads import GuardedThread

logger = logging.getLogger("pontil.worker")

# Seconds that the end of a group may take. Less than the supervisor gives a process that it has asked to end.
PART_WITHIN = 1.0


class Parting:
    """Closes a communicator, and waits no longer than PART_WITHIN for other ranks: the process ends whether they come
    or not."""

    def __init__(self, communicator: Communicator) -> None:
        self.thread = GuardedThread(communicator.close, "ranks-part", again=False)

    def wait(self) -> None:
        self.thread.start()
        self.thread.join(PART_WITHIN)
        if self.thread.is_alive():
            logger.warning("the ranks of this worker do not part within %g s: leaving without it", PART_WITHIN)
