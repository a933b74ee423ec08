# SPDX-License-Identifier: Apache-2.0
"""Loading of SNAC's decoder from the folder of its files."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from pontil.runtime.loaders.facts.fingerprint import fingerprint
from pontil.runtime.loaders.facts.shards import shards
from pontil.runtime.loaders.hf.tensor_files import opened
from pontil.runtime.models.weights import Weights
from pontil.runtime.stages.orpheus.config import FOLDER, read_snac_config
from pontil.runtime.stages.orpheus.snac import Snac

# A weight may be stored as the length and the direction of its rows (Salimans and Kingma, 2016).
LENGTH, DIRECTION = (f".parametrizations.weight.original{number}" for number in range(2))
# The other parts make codes of sound.
UNUSED = ("encoder.", "in_proj.")


def load_snac(directory: Path) -> Snac:
    """Load SNAC of a model's directory, in float32. Raises ModelError."""
    stored = dict[str, Tensor]()
    for path in shards(directory / FOLDER):
        with opened(path) as file:
            names = file.keys()
            stored |= {name: file.get_tensor(name) for name in names if not is_unused(name)}
    return Snac(read_snac_config(directory), Weights(whole(stored), torch.device("cpu"), torch.float32))


def snac_identity(directory: Path) -> str:
    """Return a hash of what the sound of codes depends on."""
    return fingerprint(read_snac_config(directory), shards(directory / FOLDER))


def is_unused(name: str) -> bool:
    return any(name.startswith(part) or f".{part}" in name for part in UNUSED)


def whole(stored: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors by the names that they have without a parametrization. One whose length is missing is left
    out."""
    for name, tensor in stored.items():
        if not name.endswith((LENGTH, DIRECTION)):
            yield name, tensor
        elif name.endswith(DIRECTION) and (length := stored.get(name.removesuffix(DIRECTION) + LENGTH)) is not None:
            sums = tensor.float().square().sum(tuple(range(1, tensor.ndim)), keepdim=True)
            yield name.removesuffix(DIRECTION) + ".weight", tensor * (length / sums.sqrt())
