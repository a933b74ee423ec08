# SPDX-License-Identifier: Apache-2.0
"""The second caller of a run: there is one where the server tells two keys apart."""

import asyncio
from pathlib import Path

import pytest
from faulty_server import faulty_server

from pontil.launcher.control.control_client import RunningLaunch
from pontil.launcher.foundation.errors import OptionError
from pontil.launcher.tools.chaos.chaos_run import ChaosRun, ChaosSettings

LOADS, GREEDY = {"authorization": "Bearer load"}, {"authorization": "Bearer greedy"}


@pytest.mark.parametrize(
    ("keys", "greedy", "expected"),
    [
        ({"Bearer load", "Bearer greedy"}, GREEDY, True),
        ({"Bearer load", "Bearer greedy"}, {}, False),
        (set(), GREEDY, False),
    ],
)
def test_two_callers_need_two_keys_and_a_server_that_asks_for_them(
    keys: set[str], greedy: dict[str, str], expected: bool
) -> None:
    assert has_second_caller(keys, greedy) is expected


def test_a_key_that_the_server_does_not_take_is_named() -> None:
    with pytest.raises(OptionError, match="does not take the key of --greedy-key: HTTP 401: no such key"):
        has_second_caller({"Bearer load"}, GREEDY)


def has_second_caller(keys: set[str], greedy: dict[str, str]) -> bool:
    with faulty_server() as server:
        server.keys = keys
        settings = ChaosSettings(server.url, "m", 1.0, ("greed",), 1, 0, LOADS, greedy)
        run = ChaosRun(RunningLaunch(Path(), {}), settings, print)
        return asyncio.run(run.has_second_caller())
