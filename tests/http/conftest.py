# SPDX-License-Identifier: Apache-2.0
"""A byte-level tokenizer, small enough to build once per session, and sites to send requests to."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import httpcore2
import pytest
from scripted_site import ScriptedSite, site
from scripted_speech import demo
from tiny_llama import byte_level_tokenizer, tokenizer_config, write_json

from pontil.runtime.tokenizer.tokenizer import Tokenizer, load_tokenizer

# Each of hundreds of clients would read the machine's certificates anew, and none uses them.
setattr(httpcore2, httpcore2.default_ssl_context.__name__, cache(httpcore2.default_ssl_context))


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory: Path = tmp_path_factory.mktemp("tokenizer")
    byte_level_tokenizer().save(str(directory / "tokenizer.json"))
    write_json(directory / "tokenizer_config.json", tokenizer_config())
    return directory


@pytest.fixture(scope="session")
def tokenizer(tokenizer_folder: Path) -> Tokenizer:
    return load_tokenizer(tokenizer_folder)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Iterator[ScriptedSite]:
    """A prefill and a decode worker that answer properly; shared, so tests leave the site as it was."""
    with site(tmp_path_factory.mktemp("site"), tokenizer, max_body_size=100_000) as made:
        made.pair()
        yield made


@pytest.fixture
def bare(tmp_path: Path, tokenizer: Tokenizer) -> Iterator[ScriptedSite]:
    """A proxy without workers, which makes one attempt."""
    with site(tmp_path, tokenizer, max_attempts=1) as made:
        yield made


@pytest.fixture(scope="module")
def sounds(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Iterator[ScriptedSite]:
    """The three stages of the speech pipeline; shared, so tests leave the site as it was."""
    with site(tmp_path_factory.mktemp("sounds"), tokenizer, graph="speech-demo") as made:
        made.stages = demo(made)  # type: ignore[attr-defined]
        yield made
