# SPDX-License-Identifier: Apache-2.0
"""Runs of random models in the world: what they must give, and what the conductor has counted of them."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from random_answers import plain_run_of
from random_models import counts_of

from pontil.runtime.errors import PontilError
from pontil.runtime.proxy.requests.answer import Finished
from pontil.runtime.stages.runs.conductor import Conductor
from pontil.runtime.stages.runs.run import Run

if TYPE_CHECKING:
    from seed_run import SeedRun

# The runs that ended well, of the one seed of this process.
WHOLE = list[Run]()


def keep_whole_runs() -> None:
    """Have each conductor keep the runs that end well."""
    close = Conductor.close

    def kept(conductor: Conductor, run: Run, end: Finished | PontilError) -> None:
        if isinstance(end, Finished) and run.later:
            WHOLE.append(run)
        close(conductor, run, end)

    untyped: Any = Conductor
    untyped.close = kept


def counts_equal_the_plain_run(run: "SeedRun") -> Iterator[str]:
    """The conductor heard of each stage of a whole run as the plain run has it: passes and the walk of the last, items
    and positions by stream, and tokens (E5)."""
    for one in [one for one in WHOLE if one.graph.name.startswith("random-")]:
        first = one.first
        plain = plain_run_of(one.graph.name, tuple(first.answers[0].ids), tuple(first.params.stop), run.model.tokenizer)
        for node in one.later:
            said = one.progress[node.name]
            found = said.passes, said.walk, said.produced, said.next_index, said.token_counts
            if found != (right := counts_of(plain, node.name)):
                yield f"{one.id} has {found} of {node.name}, and not {right}"
