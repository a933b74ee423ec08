# SPDX-License-Identifier: Apache-2.0
"""The identity of everything that the bytes of a KV block depend on, beside the tokens."""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

import torch

from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.models.config import ModelConfig

# The code that decides about bits, below this package.
ROOT = Path(__file__).resolve().parents[3]
CODE = ("gpu_ops", "runtime")


def bits_identity(
    config: WorkerConfig, model: ModelConfig, fingerprint: str, layout: KVLayout, dtype: str, kernels: str
) -> bytes:
    """Return 32 bytes that are equal for two processes of one worker whose blocks have the same bits: the same model,
    layout, kernels, options and code. The size of the pool is among them."""
    told = {
        "model": fingerprint,
        "config": repr(model),
        "layout": asdict(layout),
        "dtype": dtype,
        "kernels": kernels,
        "quantization": config.quantization,
        "deterministic": config.deterministic,
        "cores": len(config.cores),
        "kv_cache_memory": config.kv_cache_memory,
        "draft": str(config.draft_model_path),
        "graph": config.graph,
        "node": config.node,
        "torch": torch.__version__,
        "code": list(files_of(ROOT / name for name in CODE)),
    }
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).digest()


def code_identity() -> str:
    """Return a hash of the code that decides about bits and of torch's version: the same wherever and whenever it was
    installed, for blocks that outlive a launch."""
    digest = hashlib.sha256(torch.__version__.encode())
    for name in CODE:
        root = ROOT / name
        for path, size, _ in files_of([root]):
            digest.update(f"{os.path.relpath(path, root)} {size}\n".encode())
            digest.update(Path(path).read_bytes())
    return digest.hexdigest()


def files_of(folders: Iterable[Path]) -> Iterator[tuple[str, int, int]]:
    """Yield path, size and time of every source file: code may be replaced while a launch runs."""
    for folder in folders:
        for place, below, names in os.walk(folder):
            below.sort()
            for name in sorted(names):
                if name.endswith((".py", ".cpp", ".h")):
                    path = os.path.join(place, name)
                    status = os.stat(path)
                    yield path, status.st_size, status.st_mtime_ns
