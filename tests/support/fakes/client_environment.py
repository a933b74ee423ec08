# SPDX-License-Identifier: Apache-2.0
"""Environments of the real clients in tests/clients: installed once from pinned versions into the user's cache, which
outlives checkouts."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from served import ROOT

CLIENTS = ROOT / "tests" / "clients"
LOCK, REQUIREMENTS = CLIENTS / "js" / "package-lock.json", CLIENTS / "python" / "requirements.txt"
# pip has some hundred packages to write, npm ten; a network that is not there costs little.
PIP_TIMEOUT, NPM_TIMEOUT = 600.0, 120.0
OLDEST_NODE = 20
NPM = ("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=1", "--fetch-timeout=20000")
# One package in its version, with whatever it needs in those of today.
NPM_AGENT = ("npm", "install", "--save-exact", *NPM[2:])
# Modules are compiled when they are first imported, and most never are; unless Python may not keep it then.
COMPILING = "--compile" if sys.dont_write_bytecode else "--no-compile"
PIP = (
    "-m", "pip", "install", "-q", "--disable-pip-version-check", COMPILING, "--retries=1", "--no-deps",
    "-r", REQUIREMENTS,
)  # fmt: skip


class NotInstalled(Exception):
    """No environment could be made; says why in one line."""


def cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pontil" / "clients"


def install(command: Sequence[str | Path], folder: Path, timeout: float) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"{command[0]} did not end within {timeout:.0f} s") from None
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.strip()] or [f"status {done.returncode}"]
        reasons = [line for line in said if re.search("reason:|[Ee]rror:|ERROR:", line)]
        raise NotInstalled(f"{command[0]} failed: {(reasons or said)[-1]}")


@contextmanager
def made_whole(place: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes `place` if nothing fails, so that no half of an installation is ever used."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent) as folder:
        made = Path(folder) / "made"
        made.mkdir()
        yield made
        if not place.exists():
            made.rename(place)


def need_node() -> None:
    """Raise NotInstalled without a node that will do."""
    if not shutil.which("node") or not shutil.which("npm"):
        raise NotInstalled("node and npm are not there (Debian: apt install nodejs npm)")
    shown = subprocess.run(("node", "--version"), capture_output=True, text=True, timeout=60).stdout
    if int(re.sub(r"\D.*", "", shown.strip().removeprefix("v")) or 0) < OLDEST_NODE:
        raise NotInstalled(f"node {OLDEST_NODE} or later is not there, only {shown.strip()}")


def node_modules() -> Path:
    """Return the folder of the JavaScript packages."""
    need_node()
    place = cache() / f"js-{hashlib.sha256(LOCK.read_bytes()).hexdigest()[:16]}"
    if not place.exists():
        with made_whole(place) as folder:
            for file in (LOCK, LOCK.with_name("package.json")):
                shutil.copy(file, folder)
            install(NPM, folder, NPM_TIMEOUT)
    return place / "node_modules"


def python_of_clients() -> Path:
    """Return the interpreter of the environment of the Python clients. All versions are pinned, so nothing is resolved:
    that took pip longer than its installing."""
    identity = REQUIREMENTS.read_bytes() + sys.version.encode()
    place = cache() / f"python-{hashlib.sha256(identity).hexdigest()[:16]}"
    if not place.exists():
        with made_whole(place) as folder:
            install((sys.executable, "-m", "venv", folder), folder, PIP_TIMEOUT)
            install((folder / "bin" / "python", *PIP), folder, PIP_TIMEOUT)
    return place / "bin" / "python"


def pinned() -> dict[str, str]:
    """Return the pinned versions: of JavaScript by package, of Python by `python:` and package."""
    lines = re.findall(r'^    "(\S+)": "([\d.]+)",?$', LOCK.with_name("package.json").read_text(), re.MULTILINE)
    python = re.findall(r"^([\w.-]+)==([\w.]+)$", REQUIREMENTS.read_text(), re.MULTILINE)
    return dict(lines) | {f"python:{name}": version for name, version in python}
