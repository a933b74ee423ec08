# SPDX-License-Identifier: Apache-2.0
"""The network interface over which this host reaches another."""

from collections.abc import Mapping

import psutil

from pontil.launcher.host.ports import address_towards
from pontil.runtime.foundation.loopback import LOOPBACK, is_loopback


def interface_towards(host: str, flag: str) -> str | None:
    """Return the name of the interface that packets to `host` leave from, if that is known. Raises LaunchError where
    there is no way to it, and OptionError for what is no host: the `flag` has named it."""
    own_address = address_towards(host, flag)
    interfaces = psutil.net_if_addrs()
    by_address = {one.address.partition("%")[0]: name for name, found in interfaces.items() for one in found}
    return by_address.get(LOOPBACK if is_loopback(own_address) else own_address)


def collective_variables(interface: str | None) -> Mapping[str, str]:
    """Return the variables by which gloo and NCCL take this interface. They would take the first one, or that of the
    host's own name, which other hosts may not reach."""
    return {} if interface is None else {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}
