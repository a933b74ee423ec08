# SPDX-License-Identifier: Apache-2.0
"""The addresses at which the processes of a launch meet, and those that clients use."""

from collections.abc import Iterable

from pontil.launcher.errors import OptionError
from pontil.runtime.foundation.loopback import LOCALHOST, is_loopback

# The length of sockaddr_un's path, less the NUL that ends it.
MAX_IPC_PATH = 107


def is_own(host: str) -> bool:
    """Return whether only this machine can reach a host of that name."""
    return host == LOCALHOST or is_loopback(host)


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
