# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from pontil.launcher.host.gpus import find_gpus

THREE = "echo 0, 81000, 00000000:17:00.0; echo 1, 500; echo 2, [N/A]"


@pytest.mark.parametrize(
    ("script", "visible", "free"),
    [
        (THREE, None, (81000 << 20, 500 << 20, None)),
        (THREE, "2,0", (None, 81000 << 20)),
        (THREE, "1", (500 << 20,)),
        (THREE, "GPU-8f3a, 0", (None, 81000 << 20)),
        (THREE, "0,1,2,3,4", (81000 << 20, 500 << 20, None)),
        (THREE, "", ()),
        ("echo 0", None, (None,)),
        ("echo No devices were found; exit 6", None, ()),
        ("exec /none", None, ()),
    ],
)
def test_gpus_are_those_the_driver_shows_and_the_environment_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, visible: str | None, free: tuple[int | None, ...]
) -> None:
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert tuple(gpu.free for gpu in find_gpus(visible)) == free


def test_without_the_tool_there_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_gpus(None) == ()
