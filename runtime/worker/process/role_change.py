# SPDX-License-Identifier: Apache-2.0
"""The current assignment of a worker: the role that the proxy prefers it in, and whether it takes new requests.

The supervisor decides both and the proxy acts on them; neither changes the abilities of the process or its cache. So a
change is only a message to the proxy, and running requests continue.
"""

from pontil.runtime.reporting import Reporter
from pontil.runtime.worker.links.proxy_links import ProxyLinks


class AssignedRole:
    """The last order of the supervisor, and its state. Nothing is reported before the first order.

    A draining worker has until `deadline` for its requests. It is drained once the proxy has confirmed, and so sends no
    more requests, and none is left. It `leaves_for_good` if no other process will come in its place.
    """

    def __init__(self, link: ProxyLinks, report: Reporter) -> None:
        self.link, self.report = link, report
        self.order: int | None = None
        self.deadline: float | None = None
        self.reported = True
        self.leaves_for_good = False

    def take(self, order: int, role: str, drain: float | None, now: float, *, for_good: bool = False) -> None:
        """Accept an order. `drain` is None to serve new requests, else the seconds in which the present ones must
        end."""
        self.order, self.reported, self.leaves_for_good = order, False, for_good
        self.deadline = None if drain is None else now + drain
        self.link.turn_to(role, draining=drain is not None)

    def is_overdue(self, now: float) -> bool:
        return self.deadline is not None and now >= self.deadline

    @property
    def is_drained(self) -> bool:
        """Return whether no request is left, and the proxy sends no more."""
        return self.deadline is not None and self.reported

    def tell(self, *, idle: bool) -> None:
        """Report once that the order is carried out, as soon as it is."""
        draining = self.deadline is not None
        if not self.reported and self.link.is_known and (idle or not draining):
            self.reported = True
            self.report.settled(order=self.order or 0, drained=draining)
