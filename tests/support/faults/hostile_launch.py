# SPDX-License-Identifier: Apache-2.0
"""`app.py` with workers whose connector corrupts every transfer, for tests of fault detection.

argv are app.py's. The workers are real processes of a real launch; only their connector is replaced.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
import app  # noqa: E402, F401
from pontil.launcher.cli import main  # noqa: E402
from pontil.launcher.commands import launch as launch_command  # noqa: E402

if TYPE_CHECKING:
    from pontil.runtime.cache.storage import KVStorage
    from pontil.runtime.worker.links.worker_sockets import WorkerSockets


def spoil() -> None:
    """Replace the connector, in a worker before its main function runs."""
    from hostile_connector import HostileConnector, Mischief

    from pontil.runtime.worker.generate import worker

    def opened(sockets: "WorkerSockets", storage: "KVStorage", guard: object) -> HostileConnector:
        connector = HostileConnector(storage, sockets.poller.wake)
        connector.choose = lambda: Mischief.CORRUPT
        return connector

    vars(worker)["open_transport"] = opened


if __name__ == "__main__":
    if sys.argv[1] == "fork-server" or (sys.argv[1] == "child" and sys.argv[2].startswith(("prefill", "decode"))):
        spoil()
    vars(launch_command)["child_command"] = lambda: (sys.executable, str(Path(__file__).resolve()), "child")
    main()
