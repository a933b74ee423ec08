# SPDX-License-Identifier: Apache-2.0
"""A byte-level tokenizer, small enough to make for each session."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from live_proxy import LiveProxy, live_proxy
from scripted_worker import DEADLINE
from tiny_llama import byte_level_tokenizer, tokenizer_config, write_json

from pontil.runtime.tokenizer.tokenizer import Tokenizer, load_tokenizer


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory: Path = tmp_path_factory.mktemp("tokenizer")
    byte_level_tokenizer().save(str(directory / "tokenizer.json"))
    write_json(directory / "tokenizer_config.json", tokenizer_config())
    return load_tokenizer(directory)


@pytest.fixture
def play(tmp_path: Path, tokenizer: Tokenizer) -> Callable[..., None]:
    """Run a scene with a proxy of its own."""

    def run(scene: Callable[[LiveProxy], Awaitable[None]], **options: Any) -> None:
        async def main() -> None:
            async with live_proxy(tmp_path, tokenizer, **options) as made:
                await asyncio.wait_for(scene(made), DEADLINE)

        asyncio.run(main())

    return run
