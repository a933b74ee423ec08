# SPDX-License-Identifier: Apache-2.0
"""Rooms that few launches need: nothing refers to them but the table of entry points, and the rest works without."""

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from source_tree import nodes_of

from pontil.runtime.foundation.entry_points import ENTRY_POINTS

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("launcher", "runtime", "http", "gpu_ops")
# Rooms of models of several stages, which are left out together.
SPEECH = ("runtime/stages", "http/openai/sound")
ROOMS = {row.room: SPEECH if row.room == SPEECH[0] else (row.room,) for row in ENTRY_POINTS.values()}
# Command lines that need a room. The page's sentence is in tests/http/routes.
ASKED = {
    "launcher/tools": (("bench", "http://127.0.0.1:9"), ("launch", "--allow-chaos", "--dry-run")),
    "launcher/cluster": (("launch", "--on", "ray", "--dry-run"),),
    "runtime/transfer/nixl": (("launch", "--kv-connector", "nixl", "--dry-run"),),
    "runtime/stages": (("launch", "--model", "speech-demo", "--dry-run"),),
}
# Few tests of the core, with a launch whose roles are scripted, an engine, and answers over HTTP. The golden records
# have the options and endpoints of all rooms.
CORE = (
    "tests/launcher/test_cli.py", "tests/launcher/supervisor/test_supervisor.py", "tests/http/test_answers.py",
    "tests/runtime/engine/test_scheduler.py", "tests/runtime/proxy/fleet",
)  # fmt: skip
IMPORT_ALL = """
import importlib, pathlib
import app
for room in {rooms}:
    for path in sorted(pathlib.Path(room).rglob("*.py")):
        if path.name != "__main__.py":
            name = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
            importlib.import_module("pontil." + name)
"""
# An installation of the checkout for development finds the packages that a copy lacks: its programs do without.
ALONE = """import sys
sys.meta_path[:] = [one for one in sys.meta_path if "editable" not in getattr(one, "__module__", "")]
"""
# Seconds for one program in a copy.
WITHIN = 600


def names_in(path: Path) -> Iterator[str]:
    """Yield the modules, and the names in them, that a file imports."""
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_in(path: Path, rooms: Iterable[str]) -> bool:
    return str(path.relative_to(ROOT)).startswith(tuple(f"{room}/" for room in rooms))


def users_of(rooms: Iterable[str], files: Iterable[Path]) -> set[Path]:
    """Return the files that import something of these rooms."""
    packages = tuple(f"pontil.{room.replace('/', '.')}." for room in rooms)
    return {path for path in files if any(f"{name}.".startswith(packages) for name in names_in(path))}


def needing(rooms: Iterable[str]) -> set[Path]:
    """Return the files beside the product that need these rooms: those that import something of them, or one another
    of these files."""
    files = {path for folder in ("tests", "scripts") for path in (ROOT / folder).rglob("*.py")}
    found = users_of(rooms, files)
    while True:
        names = {path.stem for path in found if not path.name.startswith("test_") and path.name != "conftest.py"}
        more = {path for path in files - found if names.intersection(names_in(path))}
        if not more:
            return found
        found |= more


@pytest.mark.parametrize("room", ROOMS)
def test_only_the_table_leads_into_a_room(room: str) -> None:
    files = [path for folder in PRODUCT for path in (ROOT / folder).rglob("*.py")]
    users = users_of(ROOMS[room], [path for path in files if not is_in(path, ROOMS[room])])
    assert {str(path.relative_to(ROOT)) for path in users} == set()


def copy_without(rooms: Iterable[str], folder: Path) -> Path:
    """Copy the checkout without these rooms and their tests."""
    copy = folder / "checkout"
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    gone = needing(rooms)
    for name in listed:
        path = ROOT / name
        if path.exists() and path not in gone and not is_in(path, rooms):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, copy / name, follow_symlinks=False)
    (folder / "alone").mkdir()
    (folder / "alone" / "sitecustomize.py").write_text(ALONE)
    # Some tests ask git for the list of files.
    subprocess.run(["git", "init", "-q"], cwd=copy, check=True, timeout=WITHIN)
    return copy


def run(copy: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], cwd=copy, capture_output=True, text=True, timeout=WITHIN,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(copy.parent / "alone")},
    )  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("room", ROOMS)
def test_the_rest_works_without_a_room(room: str, tmp_path: Path) -> None:
    copy = copy_without(ROOMS[room], tmp_path)
    imported = run(copy, "-c", IMPORT_ALL.format(rooms=PRODUCT))
    assert imported.returncode == 0, imported.stderr
    collected = run(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--collect-only", "tests")
    assert collected.returncode == 0, collected.stdout[-4000:]
    core = [name for name in CORE if (copy / name).exists()]
    assert len(core) == len(CORE), "the core's tests need the room"
    tested = run(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not long", *core)
    assert tested.returncode == 0, tested.stdout[-4000:]
    for words in ASKED.get(room, ()):
        refused = run(copy, "app.py", *words)
        assert refused.returncode in (1, 2) and f"needs {room}, which this installation lacks" in refused.stderr
