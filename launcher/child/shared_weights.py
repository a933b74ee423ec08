# SPDX-License-Identifier: Apache-2.0
"""Memory in which the processes of a launch share packed weights, where these cannot be a file of the cache.

The launcher knows nothing of what is in it: the first process that packs the weights seals it, and the others map it.
It is anonymous, so nothing is left of it once the launcher and they have ended.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress

from pontil.launcher.host.devices import CPU
from pontil.launcher.host.service_port import NOTHING
from pontil.launcher.plan.child_plan import ChildPlan

# The keys of a configuration that decide what is packed.
DECIDING = ("quantization", "dtype", "kernels", "node", "rank", "ranks", "tensor_parallel_arithmetic")
MODELS = ("model", "speculative_model")


class SharedWeights:
    """Anonymous files by the model that they are for, and by what else decides its weights. One that is not used takes
    no memory."""

    def __init__(self) -> None:
        self.files: dict[tuple[object, ...], int] = {}

    def handed(self, member: ChildPlan) -> Mapping[str, Sequence[int]]:
        """Return the descriptors for one rank of a worker: for its model, and for what guesses for it. None on a GPU;
        and none where the system gives no files."""
        if not member.computes or member.device != CPU:
            return NOTHING
        names = [member.config[key] for key in MODELS if member.config.get(key)]
        deciding = tuple(member.config.get(key) for key in DECIDING)
        try:
            return {"weights_memory": [self.file((name, number > 0, *deciding)) for number, name in enumerate(names)]}
        except OSError:
            return NOTHING

    def file(self, key: tuple[object, ...]) -> int:
        if key not in self.files:
            self.files[key] = os.memfd_create("pontil-weights", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        return self.files[key]

    def close(self) -> None:
        """Give the memory up. Its last user's end frees it."""
        for file in self.files.values():
            with suppress(OSError):
                os.close(file)
        self.files = {}
