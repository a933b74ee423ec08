# SPDX-License-Identifier: Apache-2.0
"""The seats that callers may have now, looked up for many waiting requests at once."""

from collections.abc import Sequence

from pontil.runtime.foundation.fair_share import FairShare
from pontil.runtime.proxy.fleet.registered_worker import RegisteredWorker
from pontil.runtime.proxy.fleet.registry import WorkerGroup
from pontil.runtime.proxy.fleet.worker_release import WorkerRelease
from pontil.runtime.proxy.requests.request import Request
from pontil.runtime.proxy.routing.policy import SPARE_SEATS, Disagg, seating


class SeatRoom:
    """The workers of one release. A request with no seat there has no route, whatever else has room."""

    def __init__(self, workers: Sequence[RegisteredWorker], disagg: Disagg) -> None:
        seats = {load.incarnation: load for load in seating([one.loads.get(0) or one.load for one in workers], disagg)}
        self.workers = [one for one in workers if one.hello.sender in seats]
        self.is_free = any(load.can_seat(SPARE_SEATS) for load in seats.values())
        self.answers: dict[str, bool] = {}

    def may_seat(self, share: FairShare) -> bool:
        if self.is_free:
            return True
        if share.caller not in self.answers:
            self.answers[share.caller] = claimable(self.workers, share) > 0
        return self.answers[share.caller]


class SeatRooms:
    """The room at this moment in a group of workers, by release. Ask anew after each change."""

    def __init__(self, group: WorkerGroup, disagg: Disagg) -> None:
        self.group, self.disagg = group, disagg
        self.is_free = any(worker.seat_counts.taken < seats for worker, seats in group.current.seated)
        self.rooms: dict[WorkerRelease | None, SeatRoom] = {}

    def may_seat(self, request: Request) -> bool:
        """Return whether it is worth to look for a route. A request whose release is gone may get another one."""
        if self.is_free:
            return True
        if request.release not in self.rooms:
            self.rooms[request.release] = SeatRoom(self.group.serving(request.release), self.disagg)
        room = self.rooms[request.release]
        return not room.workers or room.may_seat(request.share)


def claimable(workers: Sequence[RegisteredWorker], share: FairShare) -> int:
    """Return the seats of these workers that a caller can have of others."""
    return sum(worker.seat_counts.claimable(share, worker.seats) for worker in workers)
