# SPDX-License-Identifier: Apache-2.0
"""Names of models of a hub, `owner/model[@revision][:FILE.gguf or quantization]`, and of the files that it lists."""

from __future__ import annotations

import re
from dataclasses import dataclass

MAIN = "main"
NAME = re.compile(
    r"(?P<model>\w[\w.-]{0,95}/\w[\w.-]{0,95})(?:@(?P<revision>[\w./-]{1,200}))?(?::(?P<file>[^:]{1,200}))?", re.ASCII
)
# Limits of filesystems: bytes of a name, and of a path below the cache.
MOST_NAME, MOST_PATH = 255, 1024


@dataclass(frozen=True, slots=True)
class HubName:
    """A model, the state of its repository, and which of its GGUF files is meant: a path, or a quantization."""

    model: str
    revision: str = MAIN
    file: str | None = None

    def __str__(self) -> str:
        revision = "" if self.revision == MAIN else f"@{self.revision}"
        return f"{self.model}{revision}{'' if self.file is None else f':{self.file}'}"


def read_hub_name(text: str) -> HubName | None:
    """Return what a text names, None if it has not this form. The caller checks for an existing path first."""
    found = NAME.fullmatch(text)
    if found is None:
        return None
    name = HubName(found["model"], found["revision"] or MAIN, found["file"])
    # The hub allows neither in its names; and `--` divides owner and model in the name of a folder.
    if ".." in name.model or "--" in name.model:
        return None
    return name if all(map(is_plain_path, (name.revision, name.file or MAIN))) else None


def is_plain_path(path: str) -> bool:
    """Return whether it is safe to make a file of this name in a folder: a hub may name anything."""
    parts = path.split("/")
    if not path.isprintable() or "\\" in path or any(part in ("", ".", "..") for part in parts):
        return False
    return len(path.encode()) <= MOST_PATH and max(len(part.encode()) for part in parts) <= MOST_NAME
