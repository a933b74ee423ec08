# SPDX-License-Identifier: Apache-2.0
"""The choice of the files that serve a model, among those that a repository has or that a cache has of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.facts.shards import INDEX, WHOLE
from pontil.runtime.loaders.gguf.parts import NAME as PART_NAME

CONFIG = "config.json"
# The files that a model directory needs; formats that execute code on loading are not fetched.
PATTERNS = ("*.safetensors", "*.json", "*.jinja")
# The same weights once more, as their makers first published them.
COPIES = ("original/*", "consolidated*.safetensors")
GGUF = ".gguf"
# Files of this ending that are no language model: projectors of pictures, and measurements for quantizing.
NO_MODELS = ("mmproj", "imatrix")
# The quantization that is meant where none is named: llama.cpp and Ollama take the same.
USUAL = "Q4_K_M"
MOST_NAMED = 12


@dataclass(frozen=True, slots=True)
class FileChoice:
    """The paths of a model's files within its repository, and the one that stands for it: "" for the folder of all."""

    paths: tuple[str, ...]
    entry: str = ""


def choose(paths: Iterable[str], wanted: str | None) -> FileChoice:
    """Choose the files of a model: the GGUF file, or those in parts, of a path or a quantization; without one the
    directory with safetensors, else the only or the usual GGUF file. Raises ModelError where that leaves none or
    several."""
    every = sorted(paths)
    if wanted is None and CONFIG in every and {WHOLE, INDEX} & set(every):
        return FileChoice(tuple(path for path in every if is_of_a_directory(path)))
    files = [path for path in every if path.endswith(GGUF) and not path.rpartition("/")[2].startswith(NO_MODELS)]
    models = {first_of(path): [other for other in files if first_of(other) == first_of(path)] for path in files}
    if not models:
        raise ModelError(
            f"it has neither {CONFIG} with {WHOLE} or {INDEX} nor a GGUF file: choose a model in one of these formats"
        )
    entry = only(list(models), wanted)
    check_parts(entry, models[entry])
    return FileChoice(tuple(models[entry]), entry)


def is_of_a_directory(path: str) -> bool:
    """Return whether the file belongs to a Hugging Face directory."""
    return any(fnmatchcase(path, one) for one in PATTERNS) and not any(fnmatchcase(path, one) for one in COPIES)


def first_of(path: str) -> str:
    """Return the path of the first part of the model that a GGUF file is a part of, or its own."""
    found = PART_NAME.fullmatch(path)
    return f"{found[1]}-00001-of-{found[3]}{GGUF}" if found else path


def only(models: Sequence[str], wanted: str | None) -> str:
    """Return the GGUF model of a path or a quantization. Raises ModelError."""
    if wanted is not None and wanted.endswith(GGUF):
        meant = [path for path in models if path == first_of(wanted)]
    elif wanted is None and len(models) == 1:
        meant = list(models)
    else:
        meant = [path for path in models if is_quantized(path, wanted or USUAL)]
    if len(meant) == 1:
        return meant[0]
    asked = "without a name of a file" if wanted is None else f"by {wanted!r}"
    ahead = "several" if meant else "none"
    listed = ", ".join((meant or models)[:MOST_NAMED])
    raise ModelError(f"{ahead} of its GGUF files is meant {asked}: append `:` and one of {listed}")


def is_quantized(path: str, quantization: str) -> bool:
    """Return whether the name of a file, or of its folder, has the quantization as a word of its own."""
    return re.search(rf"(^|[-._/]){re.escape(quantization)}(?=[-./])", path, re.IGNORECASE) is not None


def check_parts(entry: str, parts: Sequence[str]) -> None:
    """Check that all parts of a GGUF model are there. Raises ModelError."""
    found = PART_NAME.fullmatch(entry)
    if found is not None and len(parts) != int(found[3]):
        raise ModelError(f"of the {int(found[3])} parts of {entry} it has {len(parts)}: choose another file")
