# SPDX-License-Identifier: Apache-2.0
"""A small model whose packed weights are shared however few they are, and a folder for them."""

from pathlib import Path

import pytest
from tiny_llama import write_tiny_llama

from pontil.runtime.worker.start import packed_weights


@pytest.fixture(autouse=True)
def every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_weights, "LEAST_BYTES", 0)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_tiny_llama(tmp_path / "model", dtype="bfloat16")
    return tmp_path / "model"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"
