# SPDX-License-Identifier: Apache-2.0
"""The workers of a group, as routing looks at them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pontil.runtime.proxy.fleet.registered_worker import RegisteredWorker
from pontil.runtime.proxy.fleet.service_rate import generating
from pontil.runtime.proxy.fleet.worker_release import WorkerRelease


@dataclass(frozen=True, slots=True)
class Members:
    """The workers of a group while none comes, goes or changes its role, in the order in which they registered: all,
    those that are `available`, of these the ones that generate with their seats, and these by their release. `version`
    is that of the registry."""

    version: int
    workers: Sequence[RegisteredWorker] = ()
    available: Sequence[RegisteredWorker] = ()
    seated: Sequence[tuple[RegisteredWorker, int]] = ()
    releases: Mapping[WorkerRelease, Sequence[RegisteredWorker]] = field(default_factory=dict)

    @classmethod
    def of(cls, workers: Sequence[RegisteredWorker], version: int) -> "Members":
        available = [worker for worker in workers if not worker.leaving]
        releases: dict[WorkerRelease, list[RegisteredWorker]] = {}
        for worker in available:
            releases.setdefault(worker.release, []).append(worker)
        worker_seats = [(worker, worker.seats) for worker in generating(available)]
        return cls(version, tuple(workers), tuple(available), worker_seats, releases)
