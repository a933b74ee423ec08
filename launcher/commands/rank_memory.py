# SPDX-License-Identifier: Apache-2.0
"""The memory of a plan's ranks in words, for a plan that has workers of several, and that of a draft model."""

from pontil.launcher.config.topology import Topology


def memory_lines(topology: Topology) -> list[str]:
    """Return a line for each size of a worker, none if every worker is a single process, and one for a draft model.
    Raises LaunchError for a model that is here and cannot be divided so, or does not fit."""
    ranked = any(child.followers for child in topology.children)
    return (rank_lines(topology) if ranked else []) + draft_lines(topology)


def draft_lines(topology: Topology) -> list[str]:
    if not any(each.get("speculative_model") for each in topology.prepare.config["demands"].values()):
        return []
    from pontil.launcher.roles import memory_of_draft

    words = memory_of_draft(topology.prepare.config)
    what = "the draft model, on each worker that decodes"
    return [f"{what}: known when it is here" if words is None else f"{what}: {words}, or more"]


def rank_lines(topology: Topology) -> list[str]:
    # Loads what reads a model's configuration, which no other plan needs.
    from pontil.launcher.roles import memory_of_ranks

    sizes = memory_of_ranks(topology.prepare.config)
    if sizes is None:
        return ["known when the model is here; a launch refuses what does not fit before a worker starts"]
    return [f"{one_of(size)}: {words}, or more" for size, words in sizes.items()]


def one_of(size: int) -> str:
    return f"each of {size} ranks" if size > 1 else "a worker of one rank"
