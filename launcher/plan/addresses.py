# SPDX-License-Identifier: Apache-2.0
"""The addresses at which the processes of a launch meet, and those that clients use."""

from collections.abc import Iterable

from pontil.launcher.foundation.errors import OptionError
from pontil.launcher.options.parsers import host_of
from pontil.runtime.foundation.loopback import LOCALHOST, is_loopback

# The length of sockaddr_un's path, less the NUL that ends it.
MAX_IPC_PATH = 107
MOST_PORT = 65535


def controls_of(first: str, proxies: int) -> list[str]:
    """Return the control endpoint of each proxy of a launch: of a further one, a file beside the first one's, or the
    next port."""
    if not first.startswith("tcp://"):
        return [first, *(f"{first}-{number}" for number in range(1, proxies))]
    host, _, port = first.rpartition(":")
    if int(port) + proxies - 1 > MOST_PORT:
        raise OptionError(f"{proxies} proxies need as many ports from {port} on: choose another one for --control.")
    return [f"{host}:{int(port) + number}" for number in range(proxies)]


def is_own(host: str) -> bool:
    """Return whether only this machine can reach a host of that name."""
    return host == LOCALHOST or is_loopback(host)


def is_local(control: str) -> bool:
    """Return whether only this machine can reach a control endpoint: a socket file, or a port of its own."""
    host = host_of(control)
    return host is None or is_own(host)


def check_endpoints(endpoints: Iterable[str]) -> None:
    for endpoint in endpoints:
        path = endpoint.removeprefix("ipc://")
        if path != endpoint and len(path.encode()) > MAX_IPC_PATH:
            raise OptionError(
                f"The socket path {path} is longer than {MAX_IPC_PATH} bytes: set XDG_RUNTIME_DIR to a shorter folder."
            )


def url_host(host: str) -> str:
    """Return the host as a client on this machine writes it: wildcard addresses are no destinations."""
    local = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)
    return f"[{local}]" if ":" in local and not local.startswith("[") else local
