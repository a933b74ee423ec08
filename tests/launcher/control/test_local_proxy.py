# SPDX-License-Identifier: Apache-2.0
"""The default proxy: launches of one user on one host find it without an option."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command_line import app

from pontil.launcher.control.local_proxy import answers, at_home, open_directory
from pontil.launcher.control.run_directory import RunDirectory, usual_socket
from pontil.launcher.foundation.errors import OptionError
from pontil.launcher.host.devices import HostDevices
from pontil.launcher.options.options import LaunchOptions, Role
from pontil.launcher.plan.topology import Topology, plan

ELSEWHERE = "tcp://127.0.0.1:7000"


def planned(options: LaunchOptions, directory: RunDirectory) -> Topology:
    return plan(at_home(options, directory.base), HostDevices((0, 1), 2, 0), directory.path, directory.base)


def opened(base: Path, role: Role = "proxy", control: str | None = None) -> tuple[RunDirectory, list[str]]:
    directory = RunDirectory(base)
    made = planned(LaunchOptions(role=role, control=control), directory)
    return directory, open_directory(made, directory, role)


@contextmanager
def another_launch(base: Path) -> Iterator[int]:
    """Start a launch of a proxy in a process of its own, yield its pid, and kill it at the end."""
    script = (
        "import app, sys, pathlib; from pontil.launcher.control.run_directory import *; "
        "base = pathlib.Path(sys.argv[1]); one = RunDirectory(base); "
        " one.create([usual_socket(one.path)]); print(1, flush=True); input()"
    )
    command = [sys.executable, "-c", script, str(base)]
    root = Path(__file__).resolve().parents[3]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root)
    assert process.stdout and process.stdout.readline()
    yield process.pid
    process.kill()
    process.communicate()


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_workers_for_one_phase_join_the_proxy_of_their_host(role: Role, tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    made = planned(LaunchOptions(role=role), directory)
    assert made.control == f"ipc://{tmp_path}/control" and made.url is None
    (worker,) = made.children
    assert worker.role == role and worker.config["control"] == made.control
    assert worker.config["peer_endpoint"].startswith(f"ipc://{directory.path}/")
    assert planned(LaunchOptions(role=role, join=ELSEWHERE), directory).control == ELSEWHERE
    with pytest.raises(OptionError, match="name the proxy's --control with --join"):
        at_home(LaunchOptions(role=role, control=ELSEWHERE), tmp_path)


@pytest.mark.parametrize("role", ["all", "proxy", "mixed"])
def test_who_has_a_proxy_joins_nobody(role: Role, tmp_path: Path) -> None:
    assert at_home(LaunchOptions(role=role), tmp_path) == LaunchOptions(role=role)


@pytest.mark.parametrize("control", [None, "own file"])
def test_the_usual_socket_leads_to_the_proxy_as_long_as_its_launch_lives(control: str | None, tmp_path: Path) -> None:
    usual, asked = usual_socket(tmp_path / "base"), control and f"ipc://{tmp_path}/own"
    directory, said = opened(tmp_path / "base", control=asked)
    assert not said and usual.is_symlink() and not answers(usual)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "own" if control else directory.path / "control"))
        server.listen()
        assert answers(usual)
    directory.remove()
    assert not usual.is_symlink()


def test_the_first_proxy_of_a_host_keeps_the_usual_socket(tmp_path: Path) -> None:
    with another_launch(tmp_path) as first:
        directory, said = opened(tmp_path)
        assert len(said) == 1 and f"pid {first}" in said[0] and f"--join ipc://{directory.path}/control" in said[0]
        assert usual_socket(tmp_path).readlink() == Path(f"{first}/control")
        directory.remove()
        assert opened(tmp_path, "all")[1] == [], "who has workers of its own needs no others"
        RunDirectory(tmp_path).remove()
        assert usual_socket(tmp_path).readlink() == Path(f"{first}/control")


def test_a_launch_that_was_killed_leaves_the_usual_socket_to_the_next(tmp_path: Path) -> None:
    with another_launch(tmp_path):
        pass
    assert usual_socket(tmp_path).is_symlink() and not answers(usual_socket(tmp_path))
    directory, said = opened(tmp_path)
    assert not said and usual_socket(tmp_path).readlink() == Path(f"{directory.path.name}/control")
    directory.remove()


def test_a_proxy_on_the_network_is_not_the_usual_one(tmp_path: Path) -> None:
    directory, said = opened(tmp_path, control=ELSEWHERE)
    assert not said and not usual_socket(tmp_path).is_symlink()
    directory.remove()


def test_workers_with_an_endpoint_of_their_own_are_nobodys_usual_proxy(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    options = at_home(LaunchOptions(role="decode", http=8100), tmp_path)
    assert (options.join, options.port) == (None, 8100)
    made = planned(LaunchOptions(role="decode", http=8100), directory)
    assert made.url == "http://127.0.0.1:8100" and open_directory(made, directory, "decode") == []
    assert not usual_socket(tmp_path).is_symlink()
    directory.remove()


def test_workers_say_for_whom_they_wait(tmp_path: Path) -> None:
    directory, said = opened(tmp_path, "decode")
    assert len(said) == 1 and f"no proxy answers at {tmp_path}/control yet: waiting" in said[0]
    directory.remove()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(usual_socket(tmp_path)))
        server.listen()
        directory, said = opened(tmp_path, "decode")
        assert not said
        directory.remove()


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_one_part_alone_can_be_planned_and_examined(role: str, tmp_path: Path) -> None:
    done = app("launch", "--role", role, "--dry-run", XDG_RUNTIME_DIR=str(tmp_path))
    assert done.returncode == 0 and f"control      ipc://{tmp_path}/pontil/control" in done.stdout
    refused = app("launch", "--role", role, "--dry-run", "--control", ELSEWHERE)
    assert refused.returncode == 2 and "--join" in refused.stderr


def test_who_starts_next_removes_what_a_killed_proxy_left(tmp_path: Path) -> None:
    with another_launch(tmp_path):
        pass
    directory, _ = opened(tmp_path, "decode")
    assert {path.name for path in tmp_path.iterdir()} == {".lock", directory.path.name}
    directory.remove()
