# SPDX-License-Identifier: Apache-2.0
"""The fetch of a hub's model into the cache: its commit, its list of files, each missing one, and its names."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from pontil.runtime.config.hub_access import HubAccess
from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.fetching import only_one, say, show_progress
from pontil.runtime.loaders.hub.blob_download import BlobDownload, partial_of, size_of
from pontil.runtime.loaders.hub.file_choice import choose
from pontil.runtime.loaders.hub.hub_cache import COMMIT, DIGEST, RepositoryFile, RepositoryFolder
from pontil.runtime.loaders.hub.hub_client import HubClient
from pontil.runtime.loaders.hub.hub_name import HubName, is_plain_path
from pontil.runtime.loaders.hub.patience import Patience

USUAL_PATIENCE = Patience()
MOST_PAGES, MOST_FILES, MOST_SIZE = 100, 100_000, 1 << 50


def pull_from_hub(
    name: HubName, cache: Path, access: HubAccess, patience: Patience = USUAL_PATIENCE
) -> tuple[Path, int]:
    """Fetch what is missing of the newest state of a model's revision; return its path, and how many bytes came. Raises
    ModelError that says what to do."""
    try:
        if access.offline:
            raise ModelError("it is not in the cache whole, and HF_HUB_OFFLINE forbids to ask: unset that")
        return HubPull(name, RepositoryFolder(cache, name.model), HubClient(access, patience)).run()
    except OSError as error:
        raise ModelError(f"{name} cannot be written to {cache}: {error.strerror or error}") from error
    except ModelError as error:
        raise ModelError(f"{name} cannot be fetched: {error}") from None


class HubPull:
    """One fetch of one model."""

    def __init__(self, name: HubName, folder: RepositoryFolder, client: HubClient) -> None:
        self.name, self.folder, self.client = name, folder, client

    def run(self) -> tuple[Path, int]:
        commit = self.commit()
        listed = {file.path: file for file in self.files(commit)}
        chosen = choose(listed, self.name.file)
        files = [listed[path] for path in chosen.paths]
        self.folder.lock.parent.mkdir(parents=True, exist_ok=True)
        with only_one(self.folder.lock, self.folder.folder):
            fetched = self.fetch(commit, list({file.digest: file for file in files}.values()))
            return self.folder.keep(self.name, commit, files, chosen), fetched

    def commit(self) -> str:
        """Return the commit that the revision is now."""
        about, _ = self.client.json(f"{self.api}/revision/{quote(self.name.revision, safe='')}")
        commit = about.get("sha") if isinstance(about, dict) else None
        if not isinstance(commit, str) or not COMMIT.fullmatch(commit):
            raise ModelError("the hub names no commit of it: check HF_ENDPOINT")
        return commit

    @property
    def api(self) -> str:
        return f"{self.client.endpoint}/api/models/{self.name.model}"

    def files(self, commit: str) -> Iterator[RepositoryFile]:
        """Yield the files of a commit that a model may need, from page to page."""
        url: str | None = f"{self.api}/tree/{commit}?recursive=true"
        count = 0
        for _ in range(MOST_PAGES):
            rows, url = self.client.json(url or "")
            if not isinstance(rows, list):
                raise ModelError("the hub does not list its files: check HF_ENDPOINT")
            count += len(rows)
            yield from (file for row in rows if (file := read_row(row)) is not None)
            if url is None:
                return
            if count > MOST_FILES or (urlsplit(url).scheme, urlsplit(url).netloc.lower()) != self.client.home:
                break
        raise ModelError(f"the hub's list of files has no end within {MOST_FILES}: choose another model")

    def fetch(self, commit: str, files: Sequence[RepositoryFile]) -> int:
        """Fetch the contents that are not here; return how many bytes came. The caller holds the lock."""
        missing = [file for file in files if not self.folder.has(file)]
        if not missing:
            return 0
        self.check_space(missing)
        total = sum(file.size for file in missing)
        say(f"Fetching {self.name} ({total / 1e6:.0f} MB in {len(missing)} files) into {self.folder.folder}")
        return sum(self.download(commit, file).run() for file in missing)

    def download(self, commit: str, file: RepositoryFile) -> BlobDownload:
        url = f"{self.client.endpoint}/{self.name.model}/resolve/{commit}/{quote(file.path)}"
        shows = partial(show_progress, file.path, total=file.size)
        return BlobDownload(self.client, url, file, self.folder.blob(file), shows)

    def check_space(self, missing: Sequence[RepositoryFile]) -> None:
        """Check for the disk space of what is missing, before anything is fetched."""
        self.folder.folder.mkdir(parents=True, exist_ok=True)
        needed = sum(max(0, file.size - size_of(partial_of(self.folder.blob(file)))) for file in missing)
        free = shutil.disk_usage(self.folder.folder).free
        if needed > free:
            raise ModelError(
                f"{needed >> 20} MiB are needed in {self.folder.folder}, where {free >> 20} MiB are free: make room"
            )


def read_row(row: Any) -> RepositoryFile | None:
    """Return a file of the hub's list, None for a folder and for a file that is never needed. Raises ModelError."""
    if not isinstance(row, Mapping) or row.get("type") != "file":
        return None
    # A row's own digest is of Git's object: of a large file that is a pointer.
    content = row["lfs"] if isinstance(row.get("lfs"), Mapping) else row
    path, size, digest = row.get("path"), content.get("size"), content.get("oid")
    if not isinstance(path, str) or not path.endswith(ENDINGS):
        return None
    if not is_plain_path(path):
        raise ModelError(f"the hub lists {path[:200]!r}, which is no path within a model: choose another model")
    if type(size) is not int or not 0 <= size <= MOST_SIZE or not DIGEST.fullmatch(str(digest)):
        raise ModelError(f"the hub states no size and digest of {path}: choose another model")
    return RepositoryFile(path, size, str(digest))


ENDINGS = (".safetensors", ".json", ".jinja", ".gguf")
