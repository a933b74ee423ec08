# SPDX-License-Identifier: Apache-2.0
"""Play all scenarios on both sides, in two forks of a process that has imported what takes long: Linux with zmq, and
the world, which replaces modules for good. Called with a folder, in which each side leaves its facts as JSON."""

import json
import os
import sys
import tempfile
import traceback
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SIDES = {"real": ("real_side", "RealSide"), "world": ("world_side", "WorldSide")}


def play_all(side: str, told: Path) -> None:
    """Play every scenario on a side, and write their facts by name; of one that fails, where it did."""
    import_module("app")
    if side == "world":
        # Before anything else of pontil, which keeps what it imports.
        import_module("install").install()
    module, name = SIDES[side]
    make, facts = getattr(import_module(module), name), {}
    for scenario in import_module("all_rows").SCENARIOS:
        with tempfile.TemporaryDirectory(prefix="pontil-side-") as folder:
            playing = make(Path(folder))
            try:
                facts[scenario.name] = scenario.play(playing)
            except Exception:  # the test shows it, with the other facts
                facts[scenario.name] = {"failed": traceback.format_exc()}
            finally:
                playing.end()
    told.write_text(json.dumps(facts))


def main() -> int:
    folders = "tests/world", "tests/world/sides", "tests/support/fakes", "tests/support/models"
    sys.path[:0] = [str(ROOT), *(str(ROOT / folder) for folder in folders)]
    import_module("torch")
    forks = []
    for side in SIDES:
        forks.append(os.fork())
        if forks[-1] == 0:
            code = 1
            try:
                play_all(side, Path(sys.argv[1]) / f"{side}.json")
                code = 0
            except BaseException:  # a fork must end here: what comes next is the parent's
                traceback.print_exc()
            sys.stderr.flush()
            os._exit(code)
    return max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in forks)


if __name__ == "__main__":
    sys.exit(main())
