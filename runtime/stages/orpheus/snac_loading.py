# SPDX-License-Identifier: Apache-2.0
"""Loading of SNAC's decoder from the folder of its files."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.facts.fingerprint import fingerprint
from pontil.runtime.loaders.facts.shards import shards
from pontil.runtime.loaders.hf.tensor_files import opened
from pontil.runtime.models.weights import Weights
from pontil.runtime.stages.orpheus.config import FOLDER, FRAME_CODES, read_snac_config
from pontil.runtime.stages.orpheus.snac import Snac

# A weight may be stored as the length and the direction of its rows (Salimans and Kingma, 2016).
LENGTH, DIRECTION = (f".parametrizations.weight.original{number}" for number in range(2))
# The other parts make codes of sound.
UNUSED = ("encoder.", "in_proj.")


def load_snac(directory: Path) -> Snac:
    """Load SNAC of a model's directory, in float32, and see it decode a frame. Raises ModelError."""
    stored = dict[str, Tensor]()
    for path in shards(directory / FOLDER):
        with opened(path) as file:
            names = file.keys()
            stored |= {name: file.get_tensor(name) for name in names if not is_unused(name)}
    snac = Snac(read_snac_config(directory), Weights(whole(stored), torch.device("cpu"), torch.float32))
    try_out(snac)
    return snac


def try_out(snac: Snac) -> None:
    """Decode a frame. Raises ModelError for a decoder that cannot: a self-test draws too few tokens for a frame."""
    says = "SNAC makes no sound of a frame"
    try:
        is_sound = bool(snac.decode([[0] * FRAME_CODES]).isfinite().all())
    except RuntimeError as error:
        raise ModelError(f"{says}: {error}") from error
    if not is_sound:
        raise ModelError(f"{says}: fetch the model again")


def snac_identity(directory: Path) -> str:
    """Return a hash of what the sound of codes depends on."""
    return fingerprint(read_snac_config(directory), shards(directory / FOLDER))


def is_unused(name: str) -> bool:
    return any(name.startswith(part) or f".{part}" in name for part in UNUSED)


def whole(stored: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors by the names that they have without a parametrization. One whose length is missing is left
    out. Raises ModelError for lengths that are not those of its rows."""
    for name, tensor in stored.items():
        if not name.endswith((LENGTH, DIRECTION)):
            yield name, tensor
        elif name.endswith(DIRECTION) and (length := stored.get(name.removesuffix(DIRECTION) + LENGTH)) is not None:
            sums = tensor.float().square().sum(tuple(range(1, tensor.ndim)), keepdim=True)
            if length.shape != sums.shape:
                raise ModelError(f"SNAC's {name} has {list(sums.shape)} lengths, not {list(length.shape)}")
            yield name.removesuffix(DIRECTION) + ".weight", tensor.float() * (length.float() / sums.sqrt())
