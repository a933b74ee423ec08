# SPDX-License-Identifier: Apache-2.0
"""Checks of a worker whose ranks are on several hosts (docs/decisions/099). They raise OptionError."""

from collections.abc import Sequence

from pontil.launcher.foundation.errors import OptionError
from pontil.launcher.host.devices import CPU
from pontil.launcher.options.options import NONE, LaunchOptions
from pontil.launcher.options.worker_roles import GENERATING_ROLES
from pontil.launcher.plan.addresses import is_local
from pontil.launcher.plan.checks import check_exposure
from pontil.launcher.plan.child_plan import ChildPlan
from pontil.runtime.foundation.staged_model import StagedModel

KERNELS = ("auto", "torch")


def check_nodes(options: LaunchOptions, graph: StagedModel | None, control: str) -> None:
    """Check the options of the launch on one of several hosts that share a worker."""
    if options.nnodes == 1:
        if options.node_rank or options.master_addr:
            flag = "--node-rank" if options.node_rank else "--master-addr"
            raise OptionError(f"{flag} is for a worker on several hosts: say how many they are with --nnodes.")
        return
    if options.master_addr is None:
        raise OptionError("--nnodes has ranks meet on host 0: name an address of it with --master-addr, on each host.")
    if options.node_rank >= options.nnodes:
        raise OptionError(
            f"--node-rank is {options.node_rank}, and hosts are numbered from 0 to {options.nnodes - 1} (--nnodes)."
        )
    check_kind(options, graph)
    check_meeting(options, options.master_addr, control)


def check_kind(options: LaunchOptions, graph: StagedModel | None) -> None:
    """Check that this is a worker that can be on several hosts."""
    if options.role not in GENERATING_ROLES:
        raise OptionError(
            f"--nnodes is for one worker on several hosts, with --role {', '.join(GENERATING_ROLES[:-1])} or "
            f"{GENERATING_ROLES[-1]}, not {options.role}."
        )
    refused = {
        f"--model {options.model_name}, which has several stages": graph is not None,
        "--http": options.http is not None,
        f"--data-parallel-attention {options.data_parallel_attention}": options.data_parallel_attention != NONE,
    }
    for flag in (flag for flag, is_given in refused.items() if is_given):
        raise OptionError(f"--nnodes is not possible with {flag}, in this version: leave one of them out.")


def check_meeting(options: LaunchOptions, master_addr: str, control: str) -> None:
    """Check that these hosts reach each other, and the proxy, in a way that was allowed."""
    if options.node_rank and not options.join:
        raise OptionError(f"--node-rank {options.node_rank} starts ranks only: name the proxy's --control with --join.")
    if options.join and is_local(control) and not is_local(master_addr):
        raise OptionError(
            f"--join {control} is known on this host alone, and the ranks meet at {master_addr}: have the proxy listen "
            "there with --control tcp://HOST:PORT, and name that."
        )
    check_exposure(options, master_addr)


def check_node_workers(options: LaunchOptions, workers: Sequence[ChildPlan]) -> None:
    """Check that one worker is planned, with products that ranks on several hosts can divide."""
    if options.nnodes == 1:
        return
    if len(workers) != 1:
        raise OptionError(
            f"--nnodes is for one worker, and {len(workers)} are planned here: join its devices with +, and give each "
            "further worker launches of its own."
        )
    if workers[0].device == CPU and options.kernels not in KERNELS:
        raise OptionError(
            f"--kernels {options.kernels} has ranks meet in shared memory, and with --nnodes they are on several "
            "hosts: leave it out."
        )


def network_lines(options: LaunchOptions) -> list[str]:
    """Return the sentence that says what keys do not protect, if there is anything."""
    if not options.keys or options.master_addr is None or is_local(options.master_addr):
        return []
    return [
        "what ranks on several hosts exchange while they compute is not encrypted, whatever --keys protects: use a "
        "network between them that you trust"
    ]
