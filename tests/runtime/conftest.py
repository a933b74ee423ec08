# SPDX-License-Identifier: Apache-2.0
"""Real tokenizers: a tiny Hugging Face directory, and the GGUF files of the built-in models, fetched once."""

from pathlib import Path

import pytest
from measured_once import measured_once
from tiny_llama import write_tiny_llama

from pontil.gpu_ops.products.batch_invariance import measure
from pontil.runtime.engine.tiles import runner
from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.builtin import fetch
from pontil.runtime.loaders.builtin_models import BUILTINS
from pontil.runtime.tokenizer.tokenizer import Tokenizer, load_tokenizer

CACHE = Path("~/.cache/pontil")
# Each of hundreds of engines asks for it when it begins, as a process does once.
setattr(runner, measure.__name__, measured_once(measure))


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    return fetch(BUILTINS["smollm2-135m-instruct"], CACHE)


@pytest.fixture(scope="session")
def gemma_path() -> Path:
    try:
        return fetch(BUILTINS["gemma3-270m"], CACHE)
    except ModelError as error:
        pytest.skip(f"Gemma 3 270M cannot be fetched: {error}")


@pytest.fixture(scope="session")
def gemma(gemma_path: Path) -> Tokenizer:
    return load_tokenizer(gemma_path, CACHE)


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path) -> Tokenizer:
    return load_tokenizer(smollm2_path)


@pytest.fixture(scope="session")
def tiny_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    write_tiny_llama(directory)
    return directory


@pytest.fixture(scope="session")
def tiny(tiny_directory: Path) -> Tokenizer:
    return load_tokenizer(tiny_directory)
