# SPDX-License-Identifier: Apache-2.0
"""A real supervisor over scripted children: argv[1] is its orders as JSON."""

import json
import sys
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))
import app  # noqa: E402, F401
from pontil.launcher.console import Console  # noqa: E402
from pontil.launcher.errors import LaunchError  # noqa: E402
from pontil.launcher.health import HealthLimits  # noqa: E402
from pontil.launcher.key_change import change_keys  # noqa: E402
from pontil.launcher.notify import Notifier  # noqa: E402
from pontil.launcher.options import read_surroundings  # noqa: E402
from pontil.launcher.restart import RestartPolicy  # noqa: E402
from pontil.launcher.run_directory import RunDirectory  # noqa: E402
from pontil.launcher.supervisor import Orders, Supervisor  # noqa: E402
from pontil.launcher.topology import ChildPlan, Topology  # noqa: E402


def main() -> int:
    told = json.loads(sys.argv[1])
    plans = [
        ChildPlan(name, name.partition(":")[0], "cpu", (0,), {"script": script, "model": "m", "trace": told["trace"]})
        for name, script in {"prepare": told["prepare"], **told["children"]}.items()
    ]
    orders = Orders(
        Topology(plans[0], tuple(plans[1:]), "ipc:///control", "http://here"),
        (sys.executable, str(HERE / "scripted_child.py")),
        read_surroundings().for_child,
        RestartPolicy(**told["policy"]),
        HealthLimits(**told["limits"]),
        told["drain_timeout"],
        partial(change_keys, Path(told["keys"])) if told.get("keys") else None,
    )
    directory = RunDirectory(Path(told["base"]))
    directory.create()
    notifier = Notifier(read_surroundings().variables)
    return Supervisor(orders, Console(sys.stderr), directory, notifier).run()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except LaunchError as error:
        print(error.message, file=sys.stderr)
        sys.exit(error.exit_code)
