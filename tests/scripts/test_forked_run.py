# SPDX-License-Identifier: Apache-2.0
"""`--jobs`: what becomes of tests that are run by forks is shown as if they had been run here."""

import os
import subprocess
import sys
from pathlib import Path

from file_scheduling import LONGEST, WITH_PROCESSES, WaitingFiles
from served import ROOT

CHECKS = Path(__file__).resolve().parents[1] / "support" / "checks"
CONFTEST = """
import os
import pytest
from file_scheduling import WaitingFiles
from forked_run import ForkedRun

COLLECTED = os.getpid()
TOGETHER = {"test_first.py": "together", "test_last.py": "together"}

def pytest_runtestloop(session):
    ForkedRun(session, 2, WaitingFiles([item.nodeid for item in session.items], TOGETHER)).run()
    return True

@pytest.fixture(scope="session")
def made(tmp_path_factory):
    yield tmp_path_factory.mktemp("made") / str(os.getpid())
    with open("ends", "a") as ends:
        ends.write("end ")
"""


def run(folder: Path, *words: str, **files: str) -> tuple[int, str]:
    """Run pytest on files of tests. Return its exit code and what it says."""
    (folder / "conftest.py").write_text(CONFTEST)
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:schemathesis", "-q", "-rs", *words]
    told = subprocess.run(
        [*command, "--rootdir", str(folder), str(folder)], cwd=folder, env=os.environ | {"PYTHONPATH": str(CHECKS)},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    return told.returncode, told.stdout + told.stderr


def test_each_outcome_is_told_with_its_output(tmp_path: Path) -> None:
    """A process that ends fails its test alone."""
    ends = "import os\n\ndef test_e():\n    pass\n\ndef test_f():\n    os._exit(0)\n\ndef test_g():\n    pass\n"
    code, said = run(
        tmp_path,
        ends=ends,
        one="import pytest\n\ndef test_a():\n    pytest.skip('not today')\n\ndef test_b():\n    pass\n",
        other="import warnings\n\ndef test_c():\n    warnings.warn('careful')\n    print('seen')\n    assert 1 == 2\n",
    )
    assert code == 1
    assert "test_ends.py::test_f: its process has ended" in said
    assert "2 failed, 3 passed, 1 skipped, 1 warning" in said
    assert said.count("not today") == said.count("assert 1 == 2\n") - 1 == 1
    assert "careful" in said and "seen" in said.partition("Captured stdout call")[2]


def test_what_takes_longest_is_begun_first() -> None:
    """The files of the kind that its process takes come first, then those that are left."""
    files = [name for name in LONGEST if "/" in name]
    assert all((ROOT / name).is_file() for name in files)
    tests = [f"{name}::test_a" for name in ("tests/runtime/test_a.py", "tests/system/test_b.py", *reversed(files))]
    waiting = WaitingFiles(tests, {"tests/system/test_b.py": "pair"})
    taken = [[tests[place] for place in waiting.take(with_processes)] for with_processes in (True, True, False)]
    assert taken == [[tests[1]], ["tests/system/test_page.py::test_a"], [f"{files[0]}::test_a"]]
    others = [one for one in files[1:] if not one.startswith(WITH_PROCESSES)]
    rest = [tests[place] for _ in range(len(others) + 1) for place in waiting.take(True)]
    assert rest == [*(f"{name}::test_a" for name in others), tests[0]] and not waiting.take(True)


def test_nothing_begins_after_as_many_failures_as_are_wanted(tmp_path: Path) -> None:
    fails = "def test_a():\n    assert False\n\n" + "".join(f"def test_{n}():\n    pass\n\n" for n in range(300))
    code, said = run(tmp_path, "-x", one=fails)
    assert code == 1
    assert "stopping after 1 failures" in said and "300 passed" not in said


def test_files_of_a_group_share_what_is_made_once(tmp_path: Path) -> None:
    """Others run in another process than the one that collected them, with other folders."""
    shares = "def test_a(made):\n    open(made, 'x')\n", "def test_a(made):\n    assert made.exists()\n"
    apart = "import os, conftest\n\ndef test_a(tmp_path):\n    assert os.getpid() != conftest.COLLECTED\n"
    code, said = run(tmp_path, first=shares[0], middle=apart, last=shares[1])
    assert code == 0, said
    assert "3 passed" in said
    assert (tmp_path / "ends").read_text() == "end "
