# SPDX-License-Identifier: Apache-2.0
"""The keys of a deployment on Kubernetes: made by one command, and never kept beside the manifests."""

import os
import re
import subprocess
import sys
from pathlib import Path

from manifests import KUBERNETES
from served import ROOT

from pontil.launcher.keys.client_keys import of_file
from pontil.launcher.keys.key_file import read_key_file


def test_no_key_is_in_version_control() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", str(KUBERNETES)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    kept = [ROOT / line for line in listed.stdout.splitlines()]
    assert [path.name for path in kept if path.parent.name == "keys"] == [".gitignore"]
    assert not [path for path in kept if re.search(r"pontil-keys-1 [0-9a-f]{64}", path.read_text())]


def test_one_command_makes_the_keys(tmp_path: Path) -> None:
    environment = {**os.environ, "PONTIL": f"{sys.executable} {ROOT / 'app.py'}"}
    command = [str(KUBERNETES / "make_keys.sh"), "--out", str(tmp_path / "keys")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    keys = tmp_path / "keys"
    assert len(read_key_file(keys / "pontil.keys")) == 64
    lines = of_file(keys / "api.keys")
    by_name = {one.name: one.key for one in lines}
    assert by_name.keys() == {"clients", "metrics"} and (keys / "metrics.key").read_text() == by_name["metrics"]
    assert not any(key in done.stdout + done.stderr for key in by_name.values())
    # The key that Prometheus has gets no answer of a model: no request has fewer than two tokens.
    limits = dict(next(one.settings for one in lines if one.name == "metrics"))
    assert limits["tokens"] == limits["requests"] == limits["token_rate"] == 1 and limits["rate"] == 0.01
    again = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert again.returncode and "would be locked out" in again.stderr
    assert {one.name: one.key for one in of_file(keys / "api.keys")} == by_name
