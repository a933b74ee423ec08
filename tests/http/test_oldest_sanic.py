# SPDX-License-Identifier: Apache-2.0
"""The oldest sanic that setup.cfg allows: its private attributes are used, so the suite runs with both ends. The newest
is the one that is installed."""

import configparser
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Where the bytes of sanic are: its protocol, heads, bodies and answers.
ROOMS = ("tests/http/server", "tests/http/intake", "tests/http/stream")


@pytest.mark.long
def test_what_sanic_does_is_the_same_with_the_oldest(tmp_path: Path) -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    (oldest,) = re.findall(r"^sanic>=([\d.]+),.*<\d+$", config["options"]["install_requires"], re.MULTILINE)
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", tmp_path, f"sanic=={oldest}")
    subprocess.run(pip, check=True, timeout=600)
    # The effort of the short suite: another version differs in what it does, not once in a thousand times.
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    environment.pop("LONG_TESTS", None)
    version = (sys.executable, "-c", "import sanic; print(sanic.__version__)")
    seen = subprocess.run(version, env=environment, capture_output=True, text=True)
    assert seen.stdout.strip() == oldest, seen.stderr
    command = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", "not long", *ROOMS)
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout[-4000:]
