# SPDX-License-Identifier: Apache-2.0
"""The table of entry points: every row leads somewhere, and a room that is left out is said to be."""

import importlib.util
from importlib.machinery import ModuleSpec

import pytest

from pontil.launcher.cli import MODULES, LazyCommands
from pontil.launcher.foundation.errors import LaunchError
from pontil.runtime.foundation import entry_points
from pontil.runtime.foundation.connectors import CONNECTORS, missing_package
from pontil.runtime.foundation.entry_points import ENTRY_POINTS, entry_point, missing


def leave_out(monkeypatch: pytest.MonkeyPatch, *rooms: str) -> None:
    """Have the modules of some rooms not be found."""

    def find(name: str) -> ModuleSpec | None:
        gone = any(name.startswith(f"pontil.{room.replace('/', '.')}.") for room in rooms)
        return None if gone else importlib.util.find_spec(name)

    monkeypatch.setattr(entry_points, "find_spec", find)


@pytest.mark.parametrize("name", ENTRY_POINTS)
def test_every_entry_point_is_in_its_room(name: str) -> None:
    row = ENTRY_POINTS[name]
    assert missing(name) is None and row.target.startswith(row.room.replace("/", ".") + ".")
    assert callable(entry_point(name))


def test_a_missing_room_is_said_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_out(monkeypatch, "launcher/cluster")
    assert missing("ray") == "--on ray needs launcher/cluster, which this installation lacks: install all of pontil"


def test_a_room_whose_folder_is_gone_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(entry_points, "find_spec", find)
    assert missing("page") is not None


def test_a_command_that_is_left_out_is_not_listed_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = LazyCommands(MODULES)
    tools = {"bench", "chaos", "conformance", "plan", "profile"}
    assert {*tools, "launch"} <= set(commands)
    leave_out(monkeypatch, "launcher/tools")
    assert not tools & set(commands) and len(commands) == len(MODULES) - len(tools)
    with pytest.raises(LaunchError, match="`pontil chaos` needs launcher/tools"):
        commands["chaos"]


def test_a_connector_that_is_left_out_lacks_something(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_out(monkeypatch, "runtime/transfer/nixl")
    assert missing_package(CONNECTORS["nixl"]) == missing("nixl") is not None
    assert missing_package(CONNECTORS["tcp"]) is None
