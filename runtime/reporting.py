# SPDX-License-Identifier: Apache-2.0
"""Status reports from a worker or the proxy to the supervisor that started it."""

from collections.abc import Sequence
from typing import Any, Protocol


class Reporter(Protocol):
    """One process's line to its supervisor. Every method may be called from any thread and never raises.

    After `ready` the supervisor expects heartbeats, which are sent on a thread of their own and need no call here, and
    judges a process stuck when the last `stepped` said `working` and is older than 30 s.
    """

    def progress(self, text: str, *, waits: bool = False) -> None:
        """Report how far start-up has come; `text` is a few words for people, without the process's name. `waits`: only
        a proxy is missing, which others may start, so that the deadline of a start no longer holds."""

    def ready(self, **facts: Any) -> None:
        """Report that this process can serve. Facts are JSON values worth showing, like device="cpu", blocks=512. Call
        once."""

    def tested(self, number: int, routes: Sequence[dict[str, Any]]) -> None:
        """Report the result of self-test `number` for each route that a request can take: `route`, and as far as they
        are known `bytes`, `seconds` and `error`."""

    def failed(self, reason: str) -> None:
        """Report that this process cannot serve, for this reason (one sentence), and is about to exit."""

    def settled(self, order: int, drained: bool) -> None:
        """Report that the supervisor's order of this number is carried out and known to the proxy. `drained`: nothing
        is in flight here, and nothing new comes."""

    def asked(self, number: int, request: dict[str, Any]) -> None:
        """Pass on that an operator asks for a change of the launch's workers. Lines about the change of this number
        come as commands."""

    def used(self, models: dict[str, list[int]]) -> None:
        """Report for each model how many requests it had, how many are open, and how many of these wait for a worker.
        The first model's name is empty."""

    def stepped(self, number: int, working: bool) -> None:
        """Report that step `number` was made, or is about to be; `working` says that work waits. Cheap: call it at each
        step, and with working=True before the first step after an idle time, or a step that hangs goes unseen.
        """


class NoReports:
    """The reporter of a process that nobody watches."""

    def progress(self, text: str, *, waits: bool = False) -> None: ...
    def ready(self, **facts: Any) -> None: ...
    def tested(self, number: int, routes: Sequence[dict[str, Any]]) -> None: ...
    def failed(self, reason: str) -> None: ...
    def settled(self, order: int, drained: bool) -> None: ...
    def asked(self, number: int, request: dict[str, Any]) -> None: ...
    def used(self, models: dict[str, list[int]]) -> None: ...
    def stepped(self, number: int, working: bool) -> None: ...
