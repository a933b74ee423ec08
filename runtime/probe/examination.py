# SPDX-License-Identifier: Apache-2.0
"""Facts about this machine that decide how a worker runs: torch, kernels, memory, connectors."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from pontil.gpu_ops.kernels.compile.build import COMPILERS, KernelError
from pontil.gpu_ops.kernels.compile.instruction_sets import usable_sets
from pontil.gpu_ops.kernels.kernel_set import open_set
from pontil.runtime.errors import PontilError
from pontil.runtime.probe.host_memory import host_room
from pontil.runtime.probe.throughput import absent, measurable, measure

MachineFacts = dict[str, Any]


def examine(cache: Path) -> Iterator[tuple[str, MachineFacts]]:
    """Yield (part, facts), each as soon as it is known. `cache` is where kernels are kept. Connectors go first: they
    fork, which must not happen once there are threads."""
    yield "connectors", connector_facts()
    yield "torch", torch_facts()
    yield "kernels", kernel_facts(cache)
    yield "memory", {**asdict(host_room()), "total": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")}


def connector_facts() -> MachineFacts:
    """Return bytes a second by connector, or the error."""
    try:
        return dict(measure())
    except (PontilError, OSError) as error:
        return dict.fromkeys(measurable(), str(error)) | absent()


def torch_facts() -> MachineFacts:
    """Return facts about torch. `cuda`: the version that torch was built with, or None."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    names = [torch.cuda.get_device_name(gpu) for gpu in range(gpus)]
    return {"version": torch.__version__, "cuda": torch.version.cuda, "gpus": names}


def kernel_facts(cache: Path) -> MachineFacts:
    """Return the instruction set that workers will compute with, built if needed, and why each better one is not
    used."""
    compiler = next((path for name in COMPILERS if (path := shutil.which(name))), None)
    refusals: dict[str, str] = {}
    for instruction_set in usable_sets():
        try:
            open_set(instruction_set, 1, cache, lambda text: None).close()
        except KernelError as error:
            refusals[instruction_set.name] = str(error)
            if not error.is_about_one_set:
                break
        else:
            return {"compiler": compiler, "chosen": instruction_set.name, "refused": refusals}
    return {"compiler": compiler, "chosen": None, "refused": refusals}
