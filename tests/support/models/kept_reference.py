# SPDX-License-Identifier: Apache-2.0
"""Tokenizers as transformers reads them from GGUF files. It takes many seconds to read a vocabulary, so that what it
made of one is kept in the cache of the tests' environments."""

from importlib.metadata import version
from pathlib import Path
from typing import Any

from client_environment import cache, made_whole
from transformers import AutoTokenizer


def reference_of(path: Path) -> Any:
    """Return transformers' tokenizer for a GGUF file of a built-in model, whose name has one content."""
    packages = "-".join(version(name) for name in ("transformers", "tokenizers", "gguf"))
    place = cache().parent / "references" / f"{path.stem}-{path.stat().st_size}-{packages}"
    if not place.exists():
        with made_whole(place) as folder:
            AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).save_pretrained(folder)
    return AutoTokenizer.from_pretrained(place)
