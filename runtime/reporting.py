# SPDX-License-Identifier: Apache-2.0
"""How a worker or the proxy tells the process that started it how it is doing."""

from collections.abc import Sequence
from typing import Any, Protocol


class Reporter(Protocol):
    """One process's line to its supervisor. Every method may be called from any thread and never raises.

    After `ready` the supervisor expects heartbeats, which are sent on a thread of their own and need no call here, and
    judges a process stuck when the last `stepped` said `working` and is older than 30 s.
    """

    def progress(self, text: str) -> None:
        """Start-up has come this far; `text` is a few words for people, without the process's name."""

    def ready(self, **facts: Any) -> None:
        """This process can serve. Facts are JSON values worth showing, like device="cpu", blocks=512. Call once."""

    def tested(self, number: int, routes: Sequence[dict[str, Any]]) -> None:
        """What came of self-test `number`, of each way that a request can go: `route`, and as far as they are known
        `bytes`, `seconds` and `error`."""

    def failed(self, reason: str) -> None:
        """This process cannot serve, for this reason (one sentence), and is about to exit."""

    def settled(self, order: int, drained: bool) -> None:
        """The supervisor's order of this number is obeyed, and the proxy knows. `drained`: nothing is left here, and
        nothing new comes."""

    def stepped(self, number: int, working: bool) -> None:
        """Step `number` was made, or is about to be; `working` says that work waits. Cheap: call it at each step,
        and with working=True before the first step after an idle time, or a step that hangs goes unseen.
        """
