# SPDX-License-Identifier: Apache-2.0
"""A trace of one decode step through the engine: it agrees with the page about the engine."""

import platform
import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from workers import ScriptedProxy, drawn, everyone_clean, open_worker, prompt

from pontil.runtime.engine.engine import Output

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "internals" / "engine.md"
ROW = re.compile(r"^\| `([\w/.]+)` \| [^|]+ \|$", re.MULTILINE)
# So many files at most know of a step in which nothing but decoding happens.
MOST = 25


class CalledFiles:
    """A profile function that keeps the product's files whose functions were called, by first call."""

    def __init__(self) -> None:
        self.names: dict[str, None] = {}

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(str(ROOT)):
            name = str(Path(file).relative_to(ROOT))
            if name.startswith(("launcher/", "runtime/", "gpu_ops/", "http/")):
                self.names[name] = None


@pytest.mark.skipif(platform.machine() != "x86_64", reason="another processor's kernels are called by other files")
def test_a_decode_step_is_in_the_files_that_the_page_names(
    proxy: ScriptedProxy, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, called = open_worker(model, tmp_path, "decode:0", "decode", kernels="avx2"), CalledFiles()
    proxy.admit(worker)
    for number in range(3):
        proxy.submit(worker, f"r{number}", prompt(20), drawn(20))
    proxy.turn_until(lambda: len(proxy.answers) == 3 and all(len(one.ids) > 4 for one in proxy.answers.values()))
    step, computed = worker.machine.engine.step, list[list[Output]]()

    def traced() -> list[Output]:
        sys.setprofile(None if computed else called)
        computed.append(step())
        sys.setprofile(None)
        return computed[-1]

    monkeypatch.setattr(worker.machine.engine, "step", traced)
    everyone_clean(proxy)
    assert len(computed[0]) == 3
    (section,) = re.findall(r"^## Files of a step\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    listed = "\n".join(called.names)
    assert ROW.findall(section) == list(called.names), f"the page's table is not what a step does:\n{listed}"
    assert len(called.names) <= MOST
