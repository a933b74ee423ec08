# SPDX-License-Identifier: Apache-2.0
"""The environment of a launch, as options.py read it once, and the paths that follow from it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pontil.launcher.host.notify import OURS
from pontil.runtime.config.hub_access import PUBLIC, HubAccess

PREFIX = "PONTIL_"
# Variables that hold the keys themselves; the options of these names take files. The keys stay in this process, and no
# message shows them.
CLIENT_VARIABLE, ADMIN_VARIABLE = SECRETS = ("PONTIL_API_KEYS", "PONTIL_ADMIN_KEY")
# Variables with the prefix PONTIL_ that set no option of a launch.
OWN_VARIABLES = ("PONTIL_CACHE", "PONTIL_CONFIG", *SECRETS)
# Variables of OpenTelemetry with headers that hold secrets; the first one wins. Only the proxy gets them, by its pipe.
TRACE_HEADER_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS")
# The values by which a variable of huggingface_hub is on.
SAID_YES = ("1", "ON", "YES", "TRUE")
# glibc returns large allocations to the system at once and takes page faults to get them again: at a context of 1,600
# tokens that was a third of a step. 32 MiB is the largest value that it accepts for the first.
MEMORY_IS_KEPT = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(512 << 20)}
# torch orders GPUs by speed; the plan's numbers are those that nvidia-smi shows.
GPUS_ARE_NUMBERED_ALIKE = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
# NIXL and UCX write what they notice to a worker's output; a worker says it in a sentence. UCX also takes SIGHUP.
NIXL_IS_QUIET = {"NIXL_LOG_LEVEL": "FATAL", "UCX_LOG_LEVEL": "fatal", "UCX_DEBUG_SIGNO": "0"}


@dataclass(frozen=True, slots=True)
class LaunchEnvironment:
    """The environment variables, read once, and the paths that follow from them."""

    variables: Mapping[str, str] = field(repr=False)
    user: int

    @property
    def cache_directory(self) -> Path:
        """The directory of fetched models."""
        if directory := self.variables.get("PONTIL_CACHE"):
            return Path(directory)
        return Path(self.variables.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pontil"

    @property
    def hub_access(self) -> HubAccess:
        """The hub, by the variables that huggingface_hub reads too."""
        endpoint = self.variables.get("HF_ENDPOINT") or PUBLIC.endpoint
        is_offline = self.variables.get("HF_HUB_OFFLINE", "").upper() in SAID_YES
        return HubAccess(endpoint, self.variables.get("HF_TOKEN") or None, is_offline)

    @property
    def config_file(self) -> Path | None:
        """The configuration file to use if none is named on the command line."""
        path = self.variables.get("PONTIL_CONFIG")
        return Path(path) if path else None

    @property
    def run_base(self) -> Path:
        """The parent of all run directories of this user."""
        runtime = self.variables.get("XDG_RUNTIME_DIR")
        if runtime and os.access(runtime, os.W_OK | os.X_OK):
            return Path(runtime) / "pontil"
        return Path("/tmp") / f"pontil-{self.user}"

    @property
    def visible_gpus(self) -> str | None:
        return self.variables.get("CUDA_VISIBLE_DEVICES")

    def with_defaults(self, defaults: Mapping[str, str]) -> "LaunchEnvironment":
        """Return the same environment with these variables too, where they are not set."""
        return replace(self, variables={**defaults, **self.variables})

    def for_child(self, threads: int | None) -> dict[str, str]:
        """Return a child's environment. Settings that libraries read once must be in it before the child loads them:
        thread counts and, for processes that compute, that freed memory is kept for the next step."""
        computing = {} if threads is None else {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        defaults = {} if threads is None else {**MEMORY_IS_KEPT, **GPUS_ARE_NUMBERED_ALIKE, **NIXL_IS_QUIET}
        kept_here = (*OURS, *SECRETS, *TRACE_HEADER_VARIABLES)
        inherited_variables = {name: value for name, value in self.variables.items() if name not in kept_here}
        return {**defaults, **inherited_variables, **computing, "PYTHONUNBUFFERED": "1"}
