# SPDX-License-Identifier: Apache-2.0
"""A byte-level tokenizer, small enough to make for each session."""

from pathlib import Path

import pytest

from pontil.runtime.loaders.synthetic import byte_level_tokenizer, tokenizer_config, write_json
from pontil.runtime.text.tokenizer import Tokenizer, load_tokenizer


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory: Path = tmp_path_factory.mktemp("tokenizer")
    byte_level_tokenizer().save(str(directory / "tokenizer.json"))
    write_json(directory / "tokenizer_config.json", tokenizer_config())
    return load_tokenizer(directory)
