# SPDX-License-Identifier: Apache-2.0
"""The stage of a worker, as its configuration names it, or none."""

from collections.abc import Callable, Container, Iterable

from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.engine.engine import Output
from pontil.runtime.stages.graph.catalog import GRAPHS
from pontil.runtime.stages.worker.stage_side import StageSide
from pontil.runtime.stages.worker.stream_ports import StreamPorts
from pontil.runtime.wire.messages import Message, Submit
from pontil.runtime.worker.links.proxy_links import ProxyLinks
from pontil.runtime.worker.process.worker_request import WorkerRequest, make_request
from pontil.runtime.worker.start.assembly import WorkerResources


class NoStage:
    """The stage of a worker whose model has only one: it does nothing."""

    is_idle = True
    seats = None

    def __init__(self, machine: WorkerResources) -> None:
        self.machine = machine

    def make_request(self, submit: Submit) -> WorkerRequest:
        return make_request(submit, self.machine)

    def begin(self, request: WorkerRequest, now: float) -> bool:
        return True

    def take(self, message: Message, now: float) -> bool:
        return False

    def after(self, outputs: Iterable[Output], now: float) -> None:
        return

    def keep_only(self, keys: Container[str], now: float) -> None:
        return

    def tick(self, now: float) -> list[tuple[str, str]]:
        return []

    def orphan(self, now: float) -> None:
        return

    def counters(self) -> dict[str, int]:
        return {}

    def gauges(self) -> dict[str, int] | None:
        return None

    def end(self) -> None:
        return


def open_stage(
    config: WorkerConfig, incarnation: str, machine: WorkerResources, link: ProxyLinks,
    open_ports: Callable[[], StreamPorts],
) -> StageSide | NoStage:  # fmt: skip
    """Open the streams of a worker's stage, where its model has several."""
    if config.graph is None or config.node is None:
        return NoStage(machine)
    model = GRAPHS[config.graph]
    return StageSide(incarnation, model, model.node(config.node), machine, open_ports(), link)
