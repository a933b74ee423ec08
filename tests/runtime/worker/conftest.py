# SPDX-License-Identifier: Apache-2.0
"""A scripted proxy with a prefill and a decode worker of a tiny model."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_llama import write_tiny_llama
from workers import PromptWorker, ScriptedProxy, close_sockets, is_clean, open_worker


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_tiny_llama(folder)
    return folder


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[ScriptedProxy]:
    made = ScriptedProxy(tmp_path)
    try:
        yield made
        assert all(map(is_clean, made.workers))
    finally:
        made.close()
        close_sockets()


@pytest.fixture
def pair(proxy: ScriptedProxy, model: Path, tmp_path: Path) -> tuple[PromptWorker, PromptWorker]:
    prefill = open_worker(model, tmp_path, "prefill:0", "prefill")
    decode = open_worker(model, tmp_path, "decode:0", "decode")
    proxy.admit(prefill, decode)
    return prefill, decode
