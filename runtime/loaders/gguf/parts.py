# SPDX-License-Identifier: Apache-2.0
"""Models that are divided over several GGUF files, as gguf-split writes them: NAME-00001-of-00003.gguf and so on. The
first holds the metadata; each has a header with the places of its own tensors. No torch here."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.facts.name_list import name_list
from pontil.runtime.loaders.gguf.header import GgufHeader, GgufTensor, read_header

NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
MOST_PARTS = 4096


@dataclass(frozen=True, slots=True)
class GgufParts:
    """A model's files in order, and the first one's header with the tensors of all."""

    header: GgufHeader
    files: list[Path]


def first_part(path: Path) -> Path:
    """Return the file that holds the metadata of the model of which `path` is a part, or the whole."""
    found = NAME.fullmatch(path.name)
    return path.with_name(f"{found[1]}-00001-of-{found[3]}.gguf") if found else path


def read_parts(path: Path) -> GgufParts:
    """Read the headers of all files of a model, of which `path` is any. Raises ModelError for files that are missing,
    or that do not belong together."""
    header = read_header(path)
    count = header.integer("split.count") or 1
    if count == 1:
        return GgufParts(header, [path])
    files = files_of(path, count)
    missing = [one.name for one in files if not one.is_file()]
    if missing:
        raise ModelError(f"{path} is one of {count} files of a model: {name_list(missing)} must lie beside it")
    headers = [read_header(one) for one in files]
    for number, (file, one) in enumerate(zip(files, headers, strict=True)):
        if one.integer("split.no") != number or one.integer("split.count") != count:
            raise ModelError(f"{file} does not say that it is part {number + 1} of {count}: fetch it again")
    return GgufParts(replace(headers[0], tensors=joined(headers, path)), files)


def files_of(path: Path, count: int) -> list[Path]:
    found = NAME.fullmatch(path.name)
    if found is None or int(found[3]) != count or count > MOST_PARTS:
        raise ModelError(
            f"{path} is one of {count} files of a model: name them NAME-00001-of-{count:05}.gguf and so on"
        )
    return [path.with_name(f"{found[1]}-{number:05}-of-{found[3]}.gguf") for number in range(1, count + 1)]


def joined(headers: list[GgufHeader], path: Path) -> dict[str, GgufTensor]:
    """The tensors of all parts. Raises ModelError where they are not as many as the first part says."""
    tensors = {
        name: replace(tensor, part=number)
        for number, header in enumerate(headers)
        for name, tensor in header.tensors.items()
    }
    wanted, found = headers[0].integer("split.tensors.count"), sum(len(header.tensors) for header in headers)
    if len(tensors) != found or wanted not in (None, found):
        raise ModelError(
            f"the files of {path} hold {found} tensors where {wanted} belong to the model: fetch them again"
        )
    return tensors
