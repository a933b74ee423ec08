# SPDX-License-Identifier: Apache-2.0
"""The shared socket on a host for the separately started parts of a system: the default proxy of this user.

`<base>/control`, beside the run directories, is a link to the control socket of one launch that has a proxy: the first
that runs (run_directory.py). Workers connect to the link, so that they find whichever launch it points to next.
"""

import socket
from dataclasses import replace
from pathlib import Path

from pontil.launcher.control.run_directory import RunDirectory, usual_socket
from pontil.launcher.foundation.errors import OptionError
from pontil.launcher.options.options import LaunchOptions
from pontil.launcher.options.worker_roles import NODE
from pontil.launcher.plan.addresses import controls_of
from pontil.launcher.plan.topology import Topology

SOCKET_FILE = "ipc://"
TIMEOUT = 1.0
# Roles that cannot serve if a launch has only one of them.
HALVES = ("prefill", "decode", NODE)


def at_home(options: LaunchOptions, base: Path) -> LaunchOptions:
    """Return the same options. Workers for one phase, or for one stage without tokens, join the proxy of this host,
    unless another one was named, or they get one of their own."""
    if options.http is not None:
        return replace(options, port=options.http)
    if options.role not in HALVES or options.join:
        return options
    if options.control:
        raise OptionError(f"--role {options.role} starts workers only: name the proxy's --control with --join.")
    return replace(options, join=",".join(controls_of(f"{SOCKET_FILE}{usual_socket(base)}", options.proxies)))


def open_directory(topology: Topology, directory: RunDirectory, role: str) -> list[str]:
    """Make the run directory, and make this launch's proxy the default one if there is none. Return messages for the
    log."""
    control = socket_file(topology.control)
    own_socket = control if topology.url and role not in HALVES else None
    files = [file for endpoint in topology.controls if (file := socket_file(endpoint)) is not None]
    directory.create(files if own_socket is not None else ())
    if own_socket is not None and role == "proxy" and directory.elsewhere is not None:
        return [
            f"workers that are started here without --join go to the launch with pid {directory.elsewhere.name}, which "
            f"was first: start those of this proxy with --join {','.join(topology.controls)}"
        ]
    if topology.url is None and control is not None and not answers(control):
        return [f"no proxy answers at {control} yet: waiting for one (`launch --role proxy`, as this user, starts it)"]
    return []


def socket_file(endpoint: str) -> Path | None:
    return Path(endpoint.removeprefix(SOCKET_FILE)) if endpoint.startswith(SOCKET_FILE) else None


def answers(path: Path) -> bool:
    """Return whether a process listens there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(TIMEOUT)
        try:
            connection.connect(str(path))
        except OSError:
            return False
    return True
