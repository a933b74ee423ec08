# SPDX-License-Identifier: Apache-2.0
"""The memory of a plan's ranks in words, for a plan that has workers of several."""

from pontil.launcher.config.topology import Topology


def memory_lines(topology: Topology) -> list[str]:
    """Return a line for each size of a worker, or none if every worker is a single process. Raises LaunchError for a
    model that is here and cannot be divided so, or does not fit."""
    if not any(child.followers for child in topology.children):
        return []
    # Loads what reads a model's configuration, which no other plan needs.
    from pontil.launcher.roles import memory_of_ranks

    sizes = memory_of_ranks(topology.prepare.config)
    if sizes is None:
        return ["known when the model is here; a launch refuses what does not fit before a worker starts"]
    return [f"{one_of(size)}: {words}, or more" for size, words in sizes.items()]


def one_of(size: int) -> str:
    return f"each of {size} ranks" if size > 1 else "a worker of one rank"
