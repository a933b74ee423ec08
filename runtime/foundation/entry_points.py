# SPDX-License-Identifier: Apache-2.0
"""The table of entry points: the only way from the rest to the rooms that few launches need.

Each of these rooms may be left out of an installation, with its tests. Whatever asks for one looks first whether it is
`missing`; nothing else refers to it, so that the rest loads and works without.
"""

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """One way into a room. `room` is its folder, `target` a module and a name in it, and `use` is what needs it, as the
    beginning of a sentence."""

    room: str
    target: str
    use: str


TOOLS, STAGES = "launcher/tools", "runtime/stages"
SEVERAL = "a model of several stages"
ENTRY_POINTS = {
    "bench": EntryPoint(TOOLS, "launcher.tools.bench.command:bench", "`pontil bench`"),
    "chaos": EntryPoint(TOOLS, "launcher.tools.chaos.command:chaos", "`pontil chaos`"),
    "conformance": EntryPoint(TOOLS, "launcher.tools.conformance.command:conformance", "`pontil conformance`"),
    "disturbances": EntryPoint(TOOLS, "launcher.tools.disturbances.runner:ChaosRunner", "--allow-chaos"),
    "diagram": EntryPoint(STAGES, "runtime.stages.graph.mermaid:diagram", SEVERAL),
    "graph-named": EntryPoint(STAGES, "runtime.stages.graph.catalog:graph_named", SEVERAL),
    "graph-of-architectures": EntryPoint(STAGES, "runtime.stages.graph.catalog:graph_of_architectures", SEVERAL),
    "nixl": EntryPoint("runtime/transfer/nixl", "runtime.transfer.nixl.connector:NixlConnector", "the connector nixl"),
    "node-worker": EntryPoint(STAGES, "runtime.stages.worker.open_stage:open_node", SEVERAL),
    "page": EntryPoint("http/page", "http.page.live_page:LivePage", "the live page"),
    "plan": EntryPoint(TOOLS, "launcher.tools.planner.plan_command:plan", "`pontil plan`"),
    "profile": EntryPoint(TOOLS, "launcher.tools.planner.profile_command:profile", "`pontil profile`"),
    "ray": EntryPoint("launcher/cluster", "launcher.cluster.entry:launch_on_ray", "--on ray"),
    "runs": EntryPoint(STAGES, "runtime.stages.runs.entry:open_runs", SEVERAL),
    "sound": EntryPoint("http/openai/sound", "http.openai.sound.route:SoundRoutes", "the audio API"),
    "stage": EntryPoint(STAGES, "runtime.stages.worker.open_stage:open_stage", SEVERAL),
    "stated-media": EntryPoint(STAGES, "runtime.stages.worker.stated_media:stated_media", SEVERAL),
    "stage-checkpoint": EntryPoint(STAGES, "runtime.stages.worker.stage_loading:stage_checkpoint", SEVERAL),
    "stage-model": EntryPoint(STAGES, "runtime.stages.worker.stage_loading:load_stage", SEVERAL),
}


def missing(name: str) -> str | None:
    """Return a sentence, without its full stop, about the room of an entry point that is not installed here; None where
    it is."""
    row = ENTRY_POINTS[name]
    try:
        spec = find_spec(f"pontil.{row.target.partition(':')[0]}")
    except ModuleNotFoundError:
        spec = None
    return (
        None
        if spec is not None
        else f"{row.use} needs {row.room}, which this installation lacks: install all of pontil"
    )


def entry_point(name: str) -> Any:
    """Import a room and return what its entry point names. Each caller says by a type of its own what that is."""
    module, _, target = ENTRY_POINTS[name].target.partition(":")
    return getattr(import_module(f"pontil.{module}"), target)
