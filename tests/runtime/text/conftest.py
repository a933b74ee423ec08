# SPDX-License-Identifier: Apache-2.0
"""Two real tokenizers: a tiny Hugging Face directory and, where it was fetched before, SmolLM2's GGUF file."""

from pathlib import Path

import pytest

from pontil.runtime.loaders.builtin import BUILTINS, fetch
from pontil.runtime.loaders.synthetic import write_tiny_llama
from pontil.runtime.text.tokenizer import Tokenizer, load_tokenizer


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    return fetch(BUILTINS["smollm2-135m-instruct"], Path("~/.cache/pontil"))


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
