# SPDX-License-Identifier: Apache-2.0
"""Parsers of devices and endpoints, as those of other options are in runtime/config/readers.py."""

import re
from typing import Any

from pontil.launcher.host.device_list import DeviceItem, parse_list
from pontil.runtime.config.readers import is_address, text

WILDCARDS = ("0.0.0.0", "::", "0", "")
# The port of torch.distributed.
MASTER_PORT = 29500


def devices(value: Any) -> tuple[DeviceItem, ...]:
    if isinstance(value, list):
        value = ",".join(str(item) for item in value)
    return parse_list(str(value))


def model_names(value: Any) -> tuple[str, ...]:
    """Parse a model, or a list of several: a path may have commas."""
    names = value if isinstance(value, list) else [value]
    if not names:
        raise ValueError("must name a model")
    return tuple(map(text, names))


def endpoint(value: Any) -> str:
    """Parse a zmq address that peers can be given: a socket file, or a host and a port (no wildcard)."""
    address = bracketed(str(value))
    port = re.fullmatch(r"tcp://(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):(\d{1,5})", address, re.ASCII)
    if not re.fullmatch(r"ipc:///[^\s]+", address) and not (port and 0 < int(port[1]) < 65536):
        raise ValueError("must be ipc:///PATH or tcp://HOST:PORT")
    if host_of(address) in WILDCARDS:
        raise ValueError("must name the address by which the other hosts reach this one")
    return address


def bracketed(address: str) -> str:
    """Return a tcp endpoint with the brackets around its IPv6 address, which Kubernetes leaves out of a pod's."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    bare = address.startswith("tcp://") and ":" in host and is_address(host)
    return f"tcp://[{host}]:{port}" if bare else address


def meeting_address(value: Any) -> str:
    """Parse the host, with or without a port, at which the ranks of several hosts meet, into an endpoint."""
    address = str(value).removeprefix("tcp://")
    bare = address.strip("[]")
    if is_address(bare) or ":" not in address:
        address = f"[{bare}]:{MASTER_PORT}" if ":" in bare else f"{bare}:{MASTER_PORT}"
    try:
        return endpoint(f"tcp://{address}")
    except ValueError:
        raise ValueError("must be HOST or HOST:PORT, an address by which the other hosts reach host 0") from None


def endpoints(value: Any) -> str:
    """Parse several such addresses, separated by commas, each named once."""
    addresses = [endpoint(address.strip()) for address in str(value).split(",")]
    if len(set(addresses)) < len(addresses):
        raise ValueError("must name each address once")
    return ",".join(addresses)


def host_of(address: str) -> str | None:
    """Return the host of a tcp endpoint, without brackets; None for a socket file."""
    if not address.startswith("tcp://"):
        return None
    return address.removeprefix("tcp://").rpartition(":")[0].strip("[]")
