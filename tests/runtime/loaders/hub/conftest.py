# SPDX-License-Identifier: Apache-2.0
"""A small hub, and a pull from it that waits for nothing."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fake_hub import MODEL, FakeHub, fake_hub

from pontil.runtime.config.hub_access import HubAccess
from pontil.runtime.loaders.hub.hub_name import read_hub_name
from pontil.runtime.loaders.hub.hub_pull import pull_from_hub
from pontil.runtime.loaders.hub.patience import Patience

WEIGHTS = bytes(range(256)) * 3
FILES = {
    "config.json": b"{}",
    "model.safetensors": WEIGHTS,
    "sub/a b.json": b"[]",
    "README.md": b"words",
    "run.py": b"no",
    "a-Q4_K_M.gguf": b"GGUF" + WEIGHTS,
    "a-Q8_0.gguf": b"GGUF8" + WEIGHTS,
}
Pull = Callable[..., tuple[Path, int]]


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with fake_hub(FILES) as server:
        yield server


@pytest.fixture
def delays() -> list[float]:
    """The pauses between attempts, none of which is made."""
    return []


@pytest.fixture
def patience(delays: list[float]) -> Patience:
    return Patience(silence=20, most_failures=3, wait=delays.append)


@pytest.fixture
def pull(hub: FakeHub, tmp_path: Path, patience: Patience) -> Pull:
    """Pull a name from the hub into the folder `cache`; return the path and how many bytes came."""

    def pulled(text: str = MODEL, **access: object) -> tuple[Path, int]:
        name = read_hub_name(text)
        assert name is not None
        return pull_from_hub(name, tmp_path / "cache", replace(HubAccess(hub.url), **access), patience)  # type: ignore[arg-type]

    return pulled
