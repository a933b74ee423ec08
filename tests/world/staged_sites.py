# SPDX-License-Identifier: Apache-2.0
"""Sites whose model has several stages: which, and the workers of the stages behind the first."""

import random
from dataclasses import dataclass
from functools import cache

from hash_stages import serve
from random_models import random_model

from pontil.launcher.options.stage_list import stem
from pontil.launcher.options.worker_roles import NODE

TINY_SPEECH, SMALL_OMNI, SMALL_ORPHEUS = "tiny-speech", "small-omni", "small-orpheus"


@dataclass(frozen=True, slots=True)
class StageWorkers:
    """So many workers of one role of a stage."""

    stage: str
    role: str
    count: int

    @property
    def stem(self) -> str:
        return stem(self.stage, self.role)

    @property
    def asked(self) -> str:
        """The words by which operators ask for more or fewer of them."""
        return self.stage if self.role in (NODE, "mixed") else f"{self.stage}.{self.role}"


@dataclass(frozen=True, slots=True)
class StagedSite:
    """A model's graph, the stage that answers in text, and the workers of the others."""

    graph: str
    first: str
    later: tuple[StageWorkers, ...]

    @property
    def stages(self) -> int:
        return 1 + len({one.stage for one in self.later})


STAGED_SITES = (
    StagedSite(TINY_SPEECH, "llm", (StageWorkers("speaker", NODE, 2),)),
    StagedSite(
        SMALL_OMNI, "thinker",
        (
            StageWorkers("talker", "prefill", 1), StageWorkers("talker", "decode", 2),
            StageWorkers("code2wav", NODE, 2),
        ),
    ),
    StagedSite(SMALL_OMNI, "thinker", (StageWorkers("talker", "mixed", 2), StageWorkers("code2wav", NODE, 1))),
    StagedSite(SMALL_ORPHEUS, "llm", (StageWorkers("snac", NODE, 2),)),
)  # fmt: skip
# The number of a site whose model is a random one: this, and the model's seed.
RANDOM = 1000


@cache
def staged_site(number: int) -> StagedSite:
    """Return a site by its number, counted from 1."""
    if number < RANDOM:
        return STAGED_SITES[number - 1]
    model, chance = random_model(number - RANDOM), random.Random(number)
    serve(model)
    later = (StageWorkers(node.name, NODE, chance.randint(1, 2)) for node in model.nodes[1:])
    return StagedSite(model.name, model.first, tuple(later))
