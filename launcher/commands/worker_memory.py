# SPDX-License-Identifier: Apache-2.0
"""The memory of a plan's workers and their ranks in words, and that of a draft model."""

from pontil.launcher.plan.topology import Topology


def memory_lines(topology: Topology) -> list[str]:
    """Return lines for each size of a worker and for the host, none if the model is not here and every worker is a
    single process, and one for a draft model. Raises LaunchError for a model that is here and cannot be divided so, or
    does not fit."""
    return worker_lines(topology) + draft_lines(topology)


def draft_lines(topology: Topology) -> list[str]:
    if not any(demand.get("speculative_model") for demand in topology.prepare.config["demands"].values()):
        return []
    from pontil.launcher.roles import memory_of_draft

    words = memory_of_draft(topology.prepare.config)
    label = "the draft model, on each worker that decodes"
    return [f"{label}: known when it is here" if words is None else f"{label}: {words}, or more"]


def worker_lines(topology: Topology) -> list[str]:
    # Loads what reads a model's configuration.
    from pontil.launcher.roles import memory_of_workers

    lines = memory_of_workers(topology.prepare.config)
    if lines is not None:
        return lines
    has_ranks = any(child.followers for child in topology.children)
    return (
        ["known when the model is here; a launch refuses what does not fit before a worker starts"] if has_ranks else []
    )
