# SPDX-License-Identifier: Apache-2.0
"""`app.py` that knows random models of several stages, whose nodes hash what they are given.

argv are app.py's. Launcher, proxy and workers are real processes of a real launch; only the models are added to the
catalog. In the working directory the proxy writes what its conductor counted of each run that ended well (RUNS), and a
worker that GATE names stops before the piece of work named there, says so (WAITING), and is killed.
"""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support" / "models")]
import app  # noqa: E402, F401
from pontil.launcher.cli import main  # noqa: E402
from pontil.launcher.commands import launch as launch_command  # noqa: E402
from pontil.launcher.plan import graph_choice  # noqa: E402
from pontil.runtime.foundation.staged_model import ARCHITECTURES  # noqa: E402
from pontil.runtime.stages.graph import catalog  # noqa: E402

if TYPE_CHECKING:
    from pontil.runtime.config.worker_config import WorkerConfig
    from pontil.runtime.stages.graph.catalog import GraphModel

SEEDS = range(1, 11)
RUNS, GATE, WAITING = "runs", "gate", "waiting"


def models() -> "dict[str, GraphModel]":
    from random_models import random_model

    made = [replace(random_model(seed), architecture=f"RandomGraph{seed}") for seed in SEEDS]
    return {one.name: one for one in made}


def gated() -> Callable[[], None]:
    """Return what a node does before each piece of work of a task: the process that GATE names never begins the one
    whose number stands there."""
    worked = 0

    def before_piece() -> None:
        nonlocal worked
        worked += 1
        gate = Path(GATE)
        if gate.exists() and json.loads(gate.read_text()) == [os.getpid(), worked]:
            Path(WAITING).touch()
            # Nobody sets it: the test kills this process.
            Event().wait()

    return before_piece


def serve_nodes() -> None:
    """Have a worker compute the stages of these models."""
    from random_models import HashStage, HashTask, nodes_of

    from pontil.runtime.stages.worker import node_assembly, open_stage

    class GatedStage(HashStage):
        def begin(self, task: object) -> HashTask:
            return HashTask(nodes_of(self.model, self.stage), gated())

    def maker(model: "GraphModel", stage: str) -> "Callable[[WorkerConfig, Any], node_assembly.MadeNode]":
        return lambda config, report: node_assembly.MadeNode(GatedStage(model, stage))

    makers = {
        (model.name, node.name): maker(model, node.name) for model in models().values() for node in model.nodes[1:]
    }
    vars(node_assembly).update(GRAPHS=catalog.GRAPHS, MAKERS=MappingProxyType({**node_assembly.MAKERS, **makers}))
    vars(open_stage)["GRAPHS"] = catalog.GRAPHS


def tell_counts() -> None:
    """Have the proxy's conductor write what it counted of each run that ends well."""
    from pontil.runtime.proxy.requests.answer import Finished
    from pontil.runtime.stages.runs.conductor import Conductor

    close = Conductor.close

    def told(conductor: Conductor, run: Any, end: object) -> None:
        if isinstance(end, Finished) and run.later:
            stages = {name: stage for name in run.graph.node_names[1:] for stage in [run.progress[name]]}
            counts = {
                name: [one.passes, one.walk, one.produced, one.next_index, one.token_counts]
                for name, one in stages.items()
            }
            with open(RUNS, "a") as file:
                file.write(json.dumps({"ids": list(run.first.answers[0].ids), "counts": counts}) + "\n")
        close(conductor, run, end)  # type: ignore[arg-type]

    setattr(Conductor, Conductor.close.__name__, told)


if __name__ == "__main__":
    known = models()
    vars(catalog)["GRAPHS"] = MappingProxyType({**catalog.GRAPHS, **known})
    named = (one.architecture for one in known.values())
    vars(graph_choice)["ARCHITECTURES"] = (*ARCHITECTURES, *named)
    role = sys.argv[2] if sys.argv[1] == "child" else sys.argv[1]
    if role.startswith("proxy") or role == "fork-server":
        tell_counts()
    if role != "launch" and not role.startswith("proxy"):
        serve_nodes()
    vars(launch_command)["child_command"] = lambda: (sys.executable, str(Path(__file__).resolve()), "child")
    main()
