# SPDX-License-Identifier: Apache-2.0
"""Changes that operators ask for on a proxy's page: checked here again, and answered over the proxy's command pipe."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pontil.launcher.child.process import ChildProcess
from pontil.launcher.child.reports import ChangeReport
from pontil.launcher.supervisor.rollouts.runner import RolloutClient

# The commands of the control socket that a page may use, with the fields of each: those about one worker.
ALLOWED: Mapping[str, frozenset[str]] = {
    "drain": frozenset({"command", "names"}),
    "undrain": frozenset({"command", "names"}),
    "restart": frozenset({"command", "names"}),
    "role": frozenset({"command", "names", "role"}),
}
# Bytes that a proxy may leave unread before it is told nothing more: it hangs, or somebody else has taken it over.
MOST_UNREAD = 1 << 20
REFUSAL = "A page can only drain, undrain or restart one worker, or give it another role."

Take = Callable[[RolloutClient, dict[str, Any]], None]


class PageClient:
    """The proxy whose page asked for a change, as the client of that change. A proxy that has ended reads no line."""

    def __init__(self, process: ChildProcess, number: int) -> None:
        self.process, self.number = process, number
        self.ended = False

    def say(self, text: str) -> None:
        self.send({"say": text})

    def end(self, text: str, code: int = 0, **facts: Any) -> None:
        if not self.ended:
            self.send({"end": text, "code": code})
            self.ended = True

    def beat(self) -> None:
        self.send({})

    def ask(self, workers: Sequence[str]) -> None:
        """Ask nothing: a page has no record, and asks for no gate."""

    @property
    def verdict(self) -> str | None:
        return "a page has no record"

    def send(self, fields: Mapping[str, Any]) -> None:
        if not self.ended and self.process.ended is None and len(self.process.outbox) < MOST_UNREAD:
            self.process.send({"kind": "change", "number": self.number, **fields})


def take_change(process: ChildProcess, report: ChangeReport, take: Take) -> None:
    """Pass a proxy's request on to `take`, or refuse it. Nobody else has a page, and gets no answer."""
    if not process.plan.is_proxy:
        return
    client = PageClient(process, report.number)
    if is_allowed(report.request):
        take(client, report.request)
    else:
        client.end(REFUSAL, 2)


def is_allowed(request: Mapping[str, Any]) -> bool:
    command, names = request.get("command"), request.get("names")
    fields = ALLOWED.get(command) if isinstance(command, str) else None
    return fields == frozenset(request) and isinstance(names, list) and len(names) == 1
