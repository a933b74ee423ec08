# SPDX-License-Identifier: Apache-2.0
"""`app.py` with workers that guess wherever they can, however little they gain by it.

argv are app.py's. The workers are real processes of a real launch; only the decision how much to guess is replaced.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
import app  # noqa: E402, F401
from pontil.launcher.cli import main  # noqa: E402
from pontil.launcher.commands import launch as launch_command  # noqa: E402


def guess_always() -> None:
    """Replace the policy, in a worker before its main function runs."""
    from always_draft import AlwaysDraft

    from pontil.runtime.worker.start import draft_loading

    vars(draft_loading)["AdaptivePolicy"] = lambda ratio: AlwaysDraft(with_lookup=True)


if __name__ == "__main__":
    workers = ("prefill", "decode", "mixed")
    if sys.argv[1] == "fork-server" or (sys.argv[1] == "child" and sys.argv[2].startswith(workers)):
        guess_always()
    vars(launch_command)["child_command"] = lambda: (sys.executable, str(Path(__file__).resolve()), "child")
    main()
