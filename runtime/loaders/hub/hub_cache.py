# SPDX-License-Identifier: Apache-2.0
"""The place of a hub's models in the cache, laid out as huggingface_hub does, so that it and this find each other's:

    hub/models--OWNER--NAME/blobs/DIGEST            each content once
                            snapshots/COMMIT/PATH   links to these
                            refs/REVISION           the commit that a revision was when it was fetched

Only complete and verified content has its name. The link that makes a model usable is made last.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.facts.shards import shards
from pontil.runtime.loaders.hub.file_choice import CONFIG, FileChoice, choose
from pontil.runtime.loaders.hub.hub_name import HubName

COMMIT = re.compile(r"[0-9a-f]{40}")
# SHA-256 of a large file, SHA-1 of Git's object of another.
DIGEST = re.compile(r"[0-9a-f]{64}|[0-9a-f]{40}")
HUB, LOCKS, SNAPSHOTS = "hub", ".locks", "snapshots"
FOLDER = "models--"


@dataclass(frozen=True, slots=True)
class RepositoryFile:
    """One file of a repository, with its size in bytes."""

    path: str
    size: int
    digest: str


class RepositoryFolder:
    """The folder of one repository."""

    def __init__(self, cache: Path, model: str) -> None:
        name = FOLDER + model.replace("/", "--")
        self.folder = cache.expanduser() / HUB / name
        self.blobs, self.snapshots, self.refs = (self.folder / part for part in ("blobs", SNAPSHOTS, "refs"))
        self.lock = self.folder.parent / LOCKS / name / "pontil.lock"

    def blob(self, file: RepositoryFile) -> Path:
        return self.blobs / file.digest

    def has(self, file: RepositoryFile) -> bool:
        """Return whether the content is here. Its digest was checked before it got its name; later its size shows
        damage."""
        blob = self.blob(file)
        return blob.is_file() and blob.stat().st_size == file.size

    def found(self, name: HubName) -> Path | None:
        """Return the path of a model that is here whole, None for another."""
        commit = name.revision if COMMIT.fullmatch(name.revision) else self.commit_of(name.revision)
        if commit is None:
            return None
        snapshot = self.snapshots / commit
        try:
            chosen = choose(paths_in(snapshot), name.file)
            if not chosen.entry:
                shards(snapshot)
        except ModelError:
            return None
        return snapshot / chosen.entry

    def commit_of(self, revision: str) -> str | None:
        try:
            text = (self.refs / revision).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            return None
        return text if COMMIT.fullmatch(text) else None

    def keep(self, name: HubName, commit: str, files: Sequence[RepositoryFile], chosen: FileChoice) -> Path:
        """Give files whose contents are here their names in the snapshot of a commit, and a revision its commit; return
        the model's path. Raises OSError."""
        snapshot = self.snapshots / commit
        for file in sorted(files, key=lambda file: file.path in (CONFIG, chosen.entry)):
            link = snapshot / file.path
            link.parent.mkdir(parents=True, exist_ok=True)
            place(link, os.path.relpath(self.blob(file), link.parent))
        if name.revision != commit:
            ref = self.refs / name.revision
            ref.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self.folder) as folder:
                written = Path(folder, "ref")
                written.write_text(commit, encoding="ascii")
                written.replace(ref)
        return snapshot / chosen.entry


def repository_of(snapshot: Path) -> str | None:
    """Return the name of the repository of which a folder is a snapshot, None for another folder."""
    name = snapshot.parents[1].name if len(snapshot.parents) > 1 and snapshot.parent.name == SNAPSHOTS else ""
    return name.removeprefix(FOLDER).replace("--", "/") if name.startswith(FOLDER) else None


def paths_in(snapshot: Path) -> list[str]:
    """Return the paths of the files of a snapshot whose contents are here."""
    return [path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*") if path.is_file()]


def place(link: Path, target: str) -> None:
    """Have a link lead to a target, at once."""
    if link.is_symlink() and os.readlink(link) == target:
        return
    with tempfile.TemporaryDirectory(dir=link.parent) as folder:
        made = Path(folder, "link")
        made.symlink_to(target)
        made.replace(link)
