# SPDX-License-Identifier: Apache-2.0
"""The way of a self-test in sound: through every stage of the model."""

from dataclasses import dataclass

from pontil.runtime.foundation.staged_model import group_of
from pontil.runtime.proxy.fleet.registry import Registry
from pontil.runtime.proxy.requests.stream import Stream
from pontil.runtime.proxy.routing.policy import WorkerLoad
from pontil.runtime.stages.graph.catalog import GraphModel
from pontil.runtime.stages.runs.run import later_stages
from pontil.runtime.stages.runs.stream import RunStream


@dataclass(frozen=True, slots=True)
class SoundRoute:
    """The workers of all stages that an answer in sound needs. The dispatcher chooses among them. It is asked for with
    the prompt `question`. With `needs_sound` every answer has some; a text of nothing to say has none."""

    workers: tuple[WorkerLoad, ...]
    question: str
    needs_sound: bool
    name: str = "sound"
    failure: str = "an answer in sound fails"

    @property
    def phases(self) -> dict[str, str]:
        """The workers by incarnation; the test is made again when they are others."""
        return {worker.incarnation: self.name for worker in self.workers}

    def objection(self, stream: Stream) -> str | None:
        assert isinstance(stream, RunStream)
        return "an answer in sound had no sound" if self.needs_sound and not stream.run.audio.size else None


def sound_routes(registry: Registry, graph: GraphModel | None) -> list[SoundRoute]:
    """Return the route of an answer in sound, if the model makes sound and each stage has a worker."""
    if graph is None or graph.audio is None:
        return []
    names = [graph.first, *(node.name for node in later_stages(graph))]
    loads = [registry.of(group_of(graph, name)).loads for name in names]
    workers = tuple(load for each in loads for load in each)
    return [SoundRoute(workers, graph.question, graph.audio_needs_states)] if all(loads) else []
