# SPDX-License-Identifier: Apache-2.0
"""`--costs`: the processor time of a test has that of its processes in it, living and ended."""

import json
import subprocess
import sys
from pathlib import Path

from costs import spent

CHECKS = Path(__file__).resolve().parents[1] / "support" / "checks"
COMPUTES = "import time\nwhile time.process_time() < 0.3: pass\nprint('done', flush=True)\ninput()"
CONFTEST = """
from costs import TestCosts
from pathlib import Path

def pytest_configure(config):
    config.pluginmanager.register(TestCosts(Path("costs")))
"""
TESTS = """
import time

def test_idle():
    pass

def test_busy():
    until = time.process_time() + 0.2
    while time.process_time() < until:
        pass
"""


def test_a_child_counts_while_it_lives_and_after_its_end() -> None:
    before = spent()
    child = subprocess.Popen([sys.executable, "-c", COMPUTES], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None and child.stdout.readline() == b"done\n"
    living = spent() - before
    child.communicate(b"\n")
    # Of a living process whole hundredths of a second are known.
    assert living > 0.25 and spent() - before > living - 0.02


def test_each_test_has_a_line_and_the_dearest_is_first(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_some.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:schemathesis", "--rootdir", "."]
    told = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(CHECKS)}, capture_output=True, text=True, timeout=120
    )
    assert told.returncode == 0, told.stdout + told.stderr
    costs = {test: seconds for test, seconds, *_ in map(json.loads, (tmp_path / "costs").read_text().splitlines())}
    assert list(costs) == ["test_some.py::test_idle", "test_some.py::test_busy"]
    assert costs["test_some.py::test_busy"] >= 0.2
    shown = [line.split()[1] for line in told.stdout.splitlines() if "s test_some.py" in line]
    assert shown == ["test_some.py", "test_some.py::test_busy", "test_some.py::test_idle"]
