# SPDX-License-Identifier: Apache-2.0
"""The command `chaos` where there is nothing to disturb: one sentence each, and nobody is sent anything."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pontil.launcher.foundation.errors import LaunchError, OptionError
from pontil.launcher.tools.chaos.chaos_checks import ChaosCheck
from pontil.launcher.tools.chaos.chaos_run import ChaosReport
from pontil.launcher.tools.chaos.command import chaos, lines_of
from pontil.launcher.tools.chaos.fault_plan import KILL
from pontil.launcher.tools.chaos.pause_table import PauseRow

Launched = Callable[..., Any]
PAIR = {"proxy": ["ready", "listen"], "prefill:0": ["ready"], "decode:0": ["ready"]}
WORDS = (ChaosCheck("answers", False, "1 is changed", ("a: changed",)), ChaosCheck("audit", True, "equal"))


def run(*words: str, **variables: str) -> Any:
    done = CliRunner(env=variables).invoke(chaos, words, standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    return done


def test_a_launch_that_was_not_started_for_it_is_left_alone(launched: Launched) -> None:
    launch = launched(PAIR)
    launch.until("ready on")
    before = {name: one.pid for name, one in launch.children().items()}
    with pytest.raises(OptionError, match="does not allow chaos: start one with --allow-chaos"):
        run("--run-directory", f"{launch.base}/{launch.process.pid}")
    assert {name: one.pid for name, one in launch.children().items()} == before


def test_without_a_launch_it_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="No launch of yours is running"):
        run(XDG_RUNTIME_DIR=str(tmp_path))


def test_a_missing_library_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(OptionError, match=r"aiohttp, which is not installed: pip install 'pontil\[bench\]'$"):
        run()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--faults", "kill,burn"], "write some of kill, stop, slow, cut, stall, fill, greed"),
        (["--faults", ""], "write some of"),
        (["--minutes", "0"], "--minutes"),
        (["--minutes", "nan"], "--minutes"),
        (["--streams", "100000"], "--streams"),
        (["--seed", "-1"], "--seed"),
    ],
)
def test_values_that_cannot_be_are_refused(words: list[str], says: str) -> None:
    done = CliRunner().invoke(chaos, words)
    assert done.exit_code == 2 and says in done.output


def test_the_greedy_caller_has_a_key_of_its_own(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("load=0123456789abcdef0123456789abcdef\n")
    keys.chmod(0o600)
    with pytest.raises(OptionError, match="--greedy-key has the key of the load"):
        run("--key", str(keys), "--greedy-key", str(keys))


def test_a_report_says_what_broke_and_ends_with_the_verdict() -> None:
    report = ChaosReport(7, [], {}, 12.3, list(WORDS), [PauseRow(KILL, 1, 0.2, 0.1, None, 3.0, 1, 0, 0)])
    assert lines_of(report)[-5:] == [
        "BROKE  answers        1 is changed",
        "         a: changed",
        "held   audit          equal",
        "",
        "broke: 12 s, seed 7",
    ]
    assert (report.json["verdict"], report.json["pauses"][0]["fault"]) == ("broke", "kill")
    report.checks = list(WORDS[1:])
    assert report.held and not ChaosReport(7, [], {}).held
