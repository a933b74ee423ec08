# SPDX-License-Identifier: Apache-2.0
"""A process's loading of a model with kernels, whose packed weights it may share with others."""

from pathlib import Path

import kernels
import torch
from served import wait_for

from pontil.gpu_ops.kernels.linear import matrix_of
from pontil.gpu_ops.kernels.weights.shelf import Shelf
from pontil.runtime.loaders.checkpoint import open_checkpoint
from pontil.runtime.loaders.gguf.file import GgufCheckpoint
from pontil.runtime.models.families.registry import build_model
from pontil.runtime.models.layers.decoder import Decoder
from pontil.runtime.models.stored_rows import DeviceRows, StoredRows
from pontil.runtime.models.weights import Packing, Weights
from pontil.runtime.probe.packed_share import FOLDER
from pontil.runtime.worker.start.packed_files import SUFFIX
from pontil.runtime.worker.start.packed_weights import PackedModel, shelf_for

LOCKS = Path("/proc/locks")
TIMEOUT = 60.0


class Loading:
    """A process that loads a model with kernels, and may have its weights from another one."""

    def __init__(
        self,
        path: Path,
        cache: Path | None,
        quantization: str = "none",
        rank: int = 0,
        memory: int | None = None,
        row_parallel: bool = False,
    ) -> None:
        checkpoint = self.checkpoint = open_checkpoint(path)
        library = kernels.opened()
        part = (quantization, rank, 1 + rank, row_parallel)
        packed = PackedModel(checkpoint.fingerprint, checkpoint.files, library.name, "bfloat16", *part)
        self.shelf: Shelf = shelf_for(cache, packed, lambda text: None, memory)
        tensors, stored = checkpoint.tensors(torch.bfloat16), None
        if quantization == "gguf":
            tensors = checkpoint.levels(torch.bfloat16, stored_rows=True)
            stored = checkpoint.embedding_type if isinstance(checkpoint, GgufCheckpoint) else None
        packing = Packing(library, quantization == "int8", self.shelf, stored)
        self.weights = Weights(tensors, torch.device("cpu"), torch.bfloat16, packing)

    def model(self) -> Decoder:
        built = build_model(self.checkpoint.config, self.weights)
        assert isinstance(built, Decoder)
        return built


def bits(model: Decoder) -> list[bytes]:
    """Return every packed word and every embedding."""
    matrices = [part for product in model.linears for part in matrix_of(product).parts if part is not None]
    rows = model.embedding
    assert not isinstance(rows, DeviceRows)
    table = rows.blocks if isinstance(rows, StoredRows) else rows
    return [part.view(torch.uint8).numpy().tobytes() for part in [*matrices, table]]


def packed_files_of(cache: Path) -> list[Path]:
    return sorted((cache / FOLDER).glob(f"*{SUFFIX}"))


def change(file: Path, place: int) -> None:
    """Change a byte of a packed file, as an operator's hand could."""
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.chmod(0o600)
    file.write_bytes(data)


def wait_for_leases(path: Path, count: int, state: str = "ACTIVE") -> None:
    """Wait until so many processes have a lease on a file, which nobody waits for unless the state says so."""
    inode = f":{path.stat().st_ino} "

    def are_there() -> bool:
        found = [line.split() for line in LOCKS.open() if inode in line]
        return count == sum(line[1:3] == ["LEASE", state] for line in found)

    wait_for(are_there, TIMEOUT, f"{count} leases")
