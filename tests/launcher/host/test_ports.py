# SPDX-License-Identifier: Apache-2.0
import socket
from pathlib import Path

import pytest

from pontil.launcher.commands.launch import choose_ports
from pontil.launcher.foundation.errors import LaunchError, OptionError
from pontil.launcher.host.devices import HostDevices
from pontil.launcher.host.ports import address_towards, is_host, usable_port
from pontil.launcher.options.options import LaunchOptions
from pontil.launcher.plan.topology import plan


def test_a_free_port_is_found_and_a_taken_one_refused() -> None:
    port = usable_port("--port", "127.0.0.1", 0)
    assert usable_port("--port", "127.0.0.1", port) == port
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 0))
        server.listen()
        with pytest.raises(LaunchError, match="in use"):
            usable_port("--port", "127.0.0.1", server.getsockname()[1])


def test_a_port_left_open_is_chosen_once_for_everybody(tmp_path: Path) -> None:  # D8
    asked = LaunchOptions(port=0)
    chosen = choose_ports(asked)
    assert chosen.port > 0 and choose_ports(chosen) == chosen
    made = plan(chosen, HostDevices((0, 1), 2, 0), tmp_path, tmp_path)
    assert made.url == f"http://127.0.0.1:{chosen.port}"
    for child in made.children:
        assert child.config.get("port", chosen.port) == chosen.port
        # The only other address is a socket file of this launch's own.
        addresses = [child.config["control"], child.config.get("peer_endpoint", made.control)]
        assert all(address.startswith(f"ipc://{tmp_path}/") for address in addresses)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_one_port_cannot_be_two_things(host: str) -> None:
    port = usable_port("--port", "127.0.0.1", 0)
    with pytest.raises(OptionError, match=f"--control and --port are both {port}"):
        choose_ports(LaunchOptions(host=host, port=port, control=f"tcp://127.0.0.1:{port}"))


def test_a_control_port_in_use_is_named() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        with pytest.raises(LaunchError, match=r"in use: .*another --control"):
            choose_ports(LaunchOptions(port=0, control=f"tcp://127.0.0.1:{server.getsockname()[1]}"))


def test_who_joins_listens_on_no_port() -> None:
    joining = LaunchOptions(port=0, role="decode", join="tcp://10.0.0.1:7000")
    assert choose_ports(joining) is joining


@pytest.mark.parametrize(
    "host", ["no such host", "x" * 100, "1.2.3.4.5", "300.1.1.1", "a..b", "-a", "[::1]", "", "ä" * 60]
)
def test_what_is_no_address_is_a_mistake(host: str) -> None:
    with pytest.raises(OptionError, match="no name of a host: try 127.0.0.1") as refused:
        usable_port("--host", host, 0)
    assert refused.value.exit_code == 2
    with pytest.raises(OptionError, match="no name of a host"):
        address_towards(host)


@pytest.mark.parametrize(("host", "says"), [("nobody.invalid", "is not known"), ("203.0.113.7", "cannot be bound")])
def test_what_may_be_here_in_a_moment_is_tried_again(host: str, says: str) -> None:
    """The exit code 2 is final for systemd, and at boot names and addresses come late."""
    with pytest.raises(LaunchError, match=says) as failed:
        usable_port("--host", host, 0)
    assert failed.value.exit_code == 1


@pytest.mark.parametrize(
    "host", ["localhost", "a-b.c_d.example.", "node7", "10.0.0.1", "::1", "fe80::1%eth0", "münchen.example", "x" * 63]
)
def test_addresses_and_names_are_well_formed(host: str) -> None:
    assert is_host(host)
