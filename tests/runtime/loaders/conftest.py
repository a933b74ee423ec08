# SPDX-License-Identifier: Apache-2.0
"""A tiny checkpoint in both formats."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_gguf import write_tiny_gguf
from tiny_llama import write_tiny_llama

from pontil.runtime.models.config import ModelConfig

WriteGguf = Callable[..., Path]


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    directory = tmp_path / "tiny"
    write_tiny_llama(directory)
    return directory


@pytest.fixture
def write_gguf(tmp_path: Path) -> WriteGguf:
    def write(directory: Path, config: ModelConfig, **changes: Any) -> Path:
        return write_tiny_gguf(tmp_path / "tiny.gguf", directory, config, **changes)

    return write
