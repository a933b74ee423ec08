# SPDX-License-Identifier: Apache-2.0
"""The variables that Kubernetes puts into every container for the Services of its namespace ("service links").

For a Service `pontil` with port 8000 they are PONTIL_SERVICE_HOST, PONTIL_SERVICE_PORT, PONTIL_SERVICE_PORT_<name>,
PONTIL_PORT=tcp://10.0.0.7:8000, PONTIL_PORT_8000_TCP, and the last with _PROTO, _PORT and _ADDR behind it. They
are not options of a launch and must not be read as such (kubernetes.io, "Service", "Environment variables").
"""

import re
from collections.abc import Iterator, Mapping

HOST, PORT = "_SERVICE_HOST", "_SERVICE_PORT"
PROTOCOLS = "TCP|UDP|SCTP"
ADDRESS = re.compile(rf"({PROTOCOLS})://\S+:\d+", re.IGNORECASE)
LINK = re.compile(rf"_PORT_\d+_({PROTOCOLS})(_PROTO|_PORT|_ADDR)?")


def service_links(variables: Mapping[str, str]) -> set[str]:
    """Return the names of these variables. A Service always has a host and a port: variables that look like links but
    lack those two were set by the user."""
    services = [name.removesuffix(HOST) for name in variables if name.endswith(HOST)]
    return {link for name in services if name + PORT in variables for link in links_of(name, variables)}


def links_of(service: str, variables: Mapping[str, str]) -> Iterator[str]:
    for name, value in variables.items():
        rest = name.removeprefix(service)
        known = rest in (HOST, PORT) or rest.startswith(f"{PORT}_") or LINK.fullmatch(rest)
        if rest != name and (known or (rest == "_PORT" and ADDRESS.fullmatch(value))):
            yield name
