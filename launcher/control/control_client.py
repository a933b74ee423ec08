# SPDX-License-Identifier: Apache-2.0
"""The client side of the control socket: finds a running launch of this user, and sends requests to its supervisor."""

import json
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pontil.launcher.control.control_socket import NAME
from pontil.launcher.foundation.errors import LaunchError, OptionError

CONNECT_TIMEOUT = 5.0
# The supervisor writes much more often than this, if only an empty line.
SILENCE_TIMEOUT = 30.0


@dataclass(frozen=True, slots=True)
class RunningLaunch:
    """A running launch: its run directory, and the facts that it reports."""

    directory: Path
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def pid(self) -> int | None:
        return self.facts.get("pid")

    @property
    def port(self) -> int | None:
        return urlsplit(self.facts.get("url") or "").port

    def describe(self) -> str:
        where = self.facts.get("url") or f"joined {self.facts.get('control')}"
        return f"pid {self.pid}, {where}, {self.directory}"


@dataclass(frozen=True, slots=True)
class ControlReply:
    text: str
    code: int
    facts: dict[str, Any]


def find_launch(
    base: Path, directory: Path | None = None, pid: int | None = None, port: int | None = None
) -> RunningLaunch:
    """Return the only launch that matches. Raises LaunchError if there is none, OptionError if there are several."""
    folders = [directory] if directory else sorted(folder for folder in base.glob("*") if folder.name.isdigit())
    launches = [launch for folder in folders if (launch := greet(folder)) is not None]
    fitting = [candidate for candidate in launches if pid in (None, candidate.pid) and port in (None, candidate.port)]
    if len(fitting) == 1:
        return fitting[0]
    listing = "".join(f"\n  {candidate.describe()}" for candidate in fitting or launches)
    if fitting:
        raise OptionError(f"Several launches are running: choose one with --pid or --port.{listing}")
    if launches:
        raise LaunchError(f"No running launch fits --pid or --port; there are:{listing}")
    where = directory or base
    raise LaunchError(f"No launch of yours is running here (none answers in {where}): start one with `launch`.")


def greet(folder: Path) -> RunningLaunch | None:
    """Return the launch of this run directory; None if none answers."""
    try:
        reply = ask(folder, {"command": "describe"}, lambda text: None, CONNECT_TIMEOUT)
    except LaunchError:
        return None
    return RunningLaunch(folder, reply.facts)


def no_verdict(workers: list[str]) -> str:
    return "its command knows no trial"


def ask(
    folder: Path,
    request: dict[str, Any],
    show: Callable[[str], None],
    silence: float = SILENCE_TIMEOUT,
    judge: Callable[[list[str]], str] = no_verdict,
) -> ControlReply:
    """Send a request to the supervisor, show its messages, and wait for its final reply. Where it asks for a verdict on
    workers, `judge` has it: empty if it is good, else a reason. Raises LaunchError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(CONNECT_TIMEOUT)
        try:
            connection.connect(str(folder / NAME))
            connection.sendall(json.dumps(request).encode() + b"\n")
            connection.settimeout(silence)
            with connection.makefile("rb") as lines:
                for message in messages(lines):
                    if "end" in message:
                        return ControlReply(message["end"], message["code"], message["facts"])
                    if "try" in message:
                        verdict = judge([str(name) for name in message["try"]])
                        connection.sendall(json.dumps({"verdict": verdict}).encode() + b"\n")
                    else:
                        show(message["say"])
        except TimeoutError:
            raise LaunchError(f"The launcher of {folder} does not answer: it hangs, or was stopped.") from None
        except (OSError, ValueError, KeyError) as error:
            raise LaunchError(f"The launcher of {folder} cannot be asked: {error}.") from None
    raise LaunchError(f"The launcher of {folder} ended before it was done.")


def messages(lines: Any) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line.strip():
            yield json.loads(line)
