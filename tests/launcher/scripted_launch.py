# SPDX-License-Identifier: Apache-2.0
"""A real supervisor over scripted children; argv[1] is its orders as JSON."""

import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))
import app  # noqa: E402, F401
from pontil.launcher.child.fork.fork_server import ForkServer  # noqa: E402
from pontil.launcher.child.health import HealthLimits  # noqa: E402
from pontil.launcher.child.starter import ExecStarter  # noqa: E402
from pontil.launcher.control.run_directory import RunDirectory  # noqa: E402
from pontil.launcher.foundation.errors import LaunchError  # noqa: E402
from pontil.launcher.host.devices import HostDevices, Placement  # noqa: E402
from pontil.launcher.host.notify import Notifier  # noqa: E402
from pontil.launcher.logs.console import Console  # noqa: E402
from pontil.launcher.logs.non_blocking_writer import open_outlet, plain_notice  # noqa: E402
from pontil.launcher.options.options import LaunchOptions, read_environment, read_options  # noqa: E402
from pontil.launcher.plan.child_plan import ChildPlan, plan_ranks  # noqa: E402
from pontil.launcher.plan.topology import Topology  # noqa: E402
from pontil.launcher.supervisor.chaos import ChaosTerms  # noqa: E402
from pontil.launcher.supervisor.reload import Reloader  # noqa: E402
from pontil.launcher.supervisor.restart_policy import RestartPolicy  # noqa: E402
from pontil.launcher.supervisor.supervisor import Orders, Supervisor  # noqa: E402


def planned(name: str, script: list[Any], told: dict[str, Any]) -> ChildPlan:
    """Return the plan of a child with this script; a list of scripts makes a worker with a rank for each."""
    scripts = script if script and isinstance(script[0], list) else [script]
    shared = {
        "model": "m", "trace": told["trace"], "routes": told.get("routes"), "peer_endpoint": "ipc:///run/x",
    }  # fmt: skip
    ranks = [Placement("cpu", (0,))] * len(scripts)
    node = told.get("node", 0) if ":" in name else 0
    nodes = {"nnodes": 1 + node} if node else {}
    meeting = f"ipc://{told['trace']}.ranks"
    worker = plan_ranks(name, name.partition(":")[0], ranks, shared | nodes, meeting, node)
    members = [
        replace(one, config={**one.config, "script": own}) for one, own in zip(worker.members, scripts, strict=True)
    ]
    return replace(members[0], followers=tuple(members[1:]))


def main() -> int:
    told = json.loads(sys.argv[1])
    # The test runner's parent may ignore SIGHUP, which is inherited.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if told["terminal"]:
        # It becomes that of the first leader of a session that opens it.
        os.close(os.open(told["terminal"], os.O_RDWR))
    if "control group" in told:
        Path(told["control group"], "cgroup.procs").write_text(str(os.getpid()))
    plans = [planned(name, script, told) for name, script in {"prepare": told["prepare"], **told["children"]}.items()]
    command = (sys.executable, str(HERE / "scripted_child.py"))
    orders = Orders(
        Topology(plans[0], tuple(plans[1:]), ("ipc:///control",), "http://here"),
        ForkServer((*command, "fork-server"), ExecStarter(command, read_environment().for_child)),
        told["drain_timeout"],
        RestartPolicy(**told["policy"]),
        HealthLimits(**told["limits"]),
        self_test="routes" in told,
        machine=HostDevices((0, 1), 2, 0),
        reloader=Reloader(
            LaunchOptions(keys=told.get("keys")), lambda: read_options({}, Path(told["trace"] + ".toml"))
        ),
        chaos=ChaosTerms(3.0, 5, 120.0) if told.get("chaos") else None,
    )
    directory = RunDirectory(Path(told["base"]))
    directory.create()
    notifier = Notifier(read_environment().variables)
    writer = open_outlet(2, plain_notice)
    try:
        return Supervisor(orders, Console(writer), directory, notifier).run()
    finally:
        writer.finish(2.0)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except LaunchError as error:
        print(error.message, file=sys.stderr)
        sys.exit(error.exit_code)
