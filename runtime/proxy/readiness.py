# SPDX-License-Identifier: Apache-2.0
"""The readiness of a server: what it offers can be asked for now (D21)."""

from collections.abc import Callable
from dataclasses import dataclass

from pontil.runtime.foundation.staged_model import StagedModel, group_of
from pontil.runtime.proxy.fleet.registry import Registry
from pontil.runtime.proxy.self_test import SelfTest


@dataclass(slots=True)
class Readiness:
    """The verdict on one proxy. `reaches` returns whether a worker takes a message now. One that `is_draining` admits
    no more requests."""

    registry: Registry
    graph: StagedModel | None
    self_test: SelfTest
    reaches: Callable[[str], bool]
    is_draining: bool = False

    @property
    def objection(self) -> str | None:
        """The reason why the server is not ready, or None. It is ready if the start-up self-test has passed, and a
        worker of the model can be reached, or of each of its stages: without one of them it would refuse something that
        its model can do."""
        if self.is_draining:
            return "the server is shutting down"
        if not (self.self_test.passed or self.registry.workers):
            return "no worker is ready yet"
        if not self.self_test.passed:
            return "the self-test has not passed yet"
        lacking = [name for name in self.stages if not self.has_worker(name)]
        if None in lacking:
            return "no worker is ready yet"
        if lacking:
            named = f"stage {lacking[0]}" if len(lacking) == 1 else f"stages {', '.join(map(str, lacking))}"
            return f"no worker of the {named} is ready: requests that need it are refused, others are answered"
        return None

    @property
    def stages(self) -> list[str | None]:
        """The stages beside the first, which is None."""
        names = () if self.graph is None else self.graph.node_names
        return [None, *(name for name in names if group_of(self.graph, name) is not None)]

    def has_worker(self, stage: str | None) -> bool:
        loads = self.registry.of(group_of(self.graph, stage)).loads
        return any(self.reaches(load.incarnation) for load in loads)
