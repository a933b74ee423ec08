# SPDX-License-Identifier: Apache-2.0
"""The seats that a queue's requests can have at one moment, and the memory of a moment at which none had room."""

from collections.abc import Sequence
from operator import is_
from typing import Any

from pontil.runtime.foundation.fair_share import FairShare
from pontil.runtime.proxy.admission.fair_queue import FairQueue
from pontil.runtime.proxy.dispatch.prefix_lookup import PrefixLookup
from pontil.runtime.proxy.fleet.registered_worker import RegisteredWorker
from pontil.runtime.proxy.fleet.registry import WorkerGroup
from pontil.runtime.proxy.fleet.worker_release import WorkerRelease
from pontil.runtime.proxy.requests.request import Request
from pontil.runtime.proxy.routing.policy import SPARE_SEATS, Disagg, WorkerLoad, seating

# Numbers that change with the queue and with what is known of workers, and the workers' loads.
FleetState = tuple[list[int], list[WorkerLoad]]


class SeatRoom:
    """The workers of one release. A request with no seat there has no route, whatever else has room."""

    def __init__(self, workers: Sequence[RegisteredWorker], disagg: Disagg) -> None:
        seats = {
            load.incarnation: load
            for load in seating([worker.loads.get(0) or worker.load for worker in workers], disagg)
        }
        self.workers = [worker for worker in workers if worker.hello.sender in seats]
        self.is_free = any(load.can_seat(SPARE_SEATS) for load in seats.values())
        self.answers: dict[str, bool] = {}

    def may_seat(self, share: FairShare, may_claim: bool) -> bool:
        if self.is_free or not may_claim:
            return self.is_free
        if share.caller not in self.answers:
            self.answers[share.caller] = claimable(self.workers, share) > 0
        return self.answers[share.caller]


class SeatRooms:
    """The room at this moment in a group of workers, by release. Ask anew after each change."""

    def __init__(self, group: WorkerGroup, disagg: Disagg) -> None:
        self.group, self.disagg = group, disagg
        self.is_free = any(worker.seat_counts.taken < seats for worker, seats in group.current.seated)
        self.rooms: dict[WorkerRelease | None, SeatRoom] = {}

    def may_seat(self, request: Request, may_claim: bool) -> bool:
        """Return whether it is worth to look for a route. A request whose release is gone may get another one."""
        if self.is_free:
            return True
        if request.release not in self.rooms:
            self.rooms[request.release] = SeatRoom(self.group.serving(request.release), self.disagg)
        room = self.rooms[request.release]
        return not room.workers or room.may_seat(request.share, may_claim)


def claimable(workers: Sequence[RegisteredWorker], share: FairShare) -> int:
    """Return the seats of these workers that a caller can have of others."""
    return sum(worker.seat_counts.claimable(share, worker.seats) for worker in workers)


class RoomMemory:
    """The memory of the last state of queue and workers in which nothing that waited had room. As long as it lasts
    nothing has: most messages of workers bring tokens, and change neither."""

    def __init__(self, order: FairQueue[Any], lookup: PrefixLookup) -> None:
        self.order, self.lookup, self.registry = order, lookup, lookup.registry
        self.full: FleetState | None = None

    def now(self) -> FleetState:
        """Return the present state. What is found of a prompt changes also as more of it is looked for."""
        workers = self.registry.workers.values()
        numbers = [self.order.changes, self.registry.version, self.lookup.unfinished]
        for worker in workers:
            numbers += worker.prefixes.changes, worker.contact.reachable
        return numbers, [worker.loads.get(0) or worker.load for worker in workers]

    def lasts(self, state: FleetState) -> bool:
        """Return whether nothing has changed since nothing had room. A worker has another load, be it an equal one, as
        soon as anything of it is set."""
        full = self.full
        return full is not None and full[0] == state[0] and all(map(is_, full[1], state[1]))
