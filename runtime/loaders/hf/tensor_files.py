# SPDX-License-Identifier: Apache-2.0
"""Files of safetensors, and the places of tensors in them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.facts.weight_forms import Shape
from pontil.runtime.loaders.hf.fused_experts import FusedPart


@dataclass(frozen=True, slots=True)
class TensorLocation:
    """The file that holds a tensor, its name and type there, and its part of that tensor, if it is not the whole."""

    path: Path
    stored_name: str
    kind: str
    part: FusedPart | None = None

    @property
    def paths(self) -> tuple[Path, ...]:
        return (self.path,)

    def read(self, file: Any) -> torch.Tensor:
        """Read the tensor from the opened file."""
        if self.part is None:
            whole: torch.Tensor = file.get_tensor(self.stored_name)
            return whole
        part, stored = self.part, file.get_slice(self.stored_name)
        if part.expert is None:
            rows: torch.Tensor = stored[part.start : part.end]
            return rows
        if part.transposed or part.step > 1:
            one: torch.Tensor = stored[part.expert : part.expert + 1][0]
            return (one.T if part.transposed else one)[part.start : part.end : part.step].contiguous()
        cut: torch.Tensor = stored[part.expert : part.expert + 1, part.start : part.end]
        return cut[0]


def stored_tensors(path: Path) -> dict[str, tuple[Shape, str]]:
    """Shape and type of each tensor in the file."""
    with opened(path) as file:
        names = file.keys()
        slices = {name: file.get_slice(name) for name in names}
        return {name: (tuple(one.get_shape()), one.get_dtype()) for name, one in slices.items()}


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Open a safetensors file. Raises ModelError, also for errors while it is read."""
    if not os.access(path, os.R_OK):
        raise ModelError(f"{path} may not be read by the user who runs this: give them the right to (chmod a+r)")
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} is damaged or cut off ({error}): fetch it again") from error
