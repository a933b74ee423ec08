# SPDX-License-Identifier: Apache-2.0
"""The download of one file: on from where a broken one was, and verified before it gets its name.

The bytes so far are in `DIGEST.partial`, and the ETag of the response that began them in `DIGEST.etag`. With both a
request asks for the rest, if the server's file is still the same (RFC 9110, If-Range).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPResponse
from pathlib import Path

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.fetching import sync
from pontil.runtime.loaders.hub.hub_cache import RepositoryFile
from pontil.runtime.loaders.hub.hub_client import HubClient
from pontil.runtime.loaders.hub.patience import PassingError

COPY_BYTES = 1 << 20
SHA256_DIGITS = 64
MOST_TAG = 1024


@dataclass(frozen=True, slots=True)
class BlobDownload:
    """One file of a hub on its way to `blob`. `shows` is called with the bytes that are here."""

    client: HubClient
    url: str
    file: RepositoryFile
    blob: Path
    shows: Callable[[int], None]

    @property
    def partial(self) -> Path:
        return partial_of(self.blob)

    @property
    def tag(self) -> Path:
        return self.blob.with_name(f"{self.blob.name}.etag")

    def have(self) -> int:
        return size_of(self.partial)

    def run(self) -> int:
        """Fetch and verify; return how many bytes came. What was begun in another run and proves wrong is fetched once
        more from its beginning. Raises ModelError, OSError."""
        self.blob.parent.mkdir(parents=True, exist_ok=True)
        before = self.have()
        self.client.patience.insist(self.receive, self.have)
        if not self.is_right() and before:
            self.forget()
            before = 0
            self.client.patience.insist(self.receive, self.have)
        if not self.is_right():
            self.forget()
            raise ModelError(
                f"the hub gives {self.file.path} with another content than its digest says, and it was deleted: "
                "try again later"
            )
        sync(self.partial)
        self.partial.replace(self.blob)
        self.tag.unlink(missing_ok=True)
        return self.file.size - before

    def receive(self) -> None:
        """Fetch the missing bytes, as one attempt."""
        have, size = self.have(), self.file.size
        if have > size:
            self.forget()
            have = 0
        if have == size:
            self.partial.touch()
            return
        with self.client.open(self.url, self.conditions(have)) as response:
            goes_on = self.is_the_rest(response, have)
            if not goes_on:
                self.start_anew(response)
            with self.partial.open("ab" if goes_on else "wb") as written:
                self.copy(response, written.write, have if goes_on else 0)
        if self.have() < size:
            raise PassingError(f"the connection ended before the end of {self.file.path}")

    def conditions(self, have: int) -> dict[str, str]:
        """Return the headers that ask for the rest of what is begun."""
        if not have:
            return {}
        tag = self.begun_tag()
        return {"Range": f"bytes={have}-"} | ({} if tag is None else {"If-Range": tag})

    def begun_tag(self) -> str | None:
        try:
            return self.tag.read_text(encoding="ascii") or None
        except (OSError, UnicodeDecodeError):
            return None

    def is_the_rest(self, response: HTTPResponse, have: int) -> bool:
        """Return whether the response begins where the partial file ends; else it is whole. Raises PassingError for one
        that is neither, and for another file's: the next attempt begins at the beginning."""
        if response.status == 200:
            return False
        tag, begun = strong_tag(response), self.begun_tag()
        is_ours = response.headers.get("Content-Range", "").startswith(f"bytes {have}-") and have > 0
        if response.status == 206 and is_ours and (begun is None or tag is None or tag == begun):
            return True
        self.forget()
        raise PassingError(f"the hub does not give the rest of {self.file.path}")

    def start_anew(self, response: HTTPResponse) -> None:
        self.forget()
        if (tag := strong_tag(response)) is not None:
            self.tag.write_text(tag, encoding="ascii")

    def copy(self, response: HTTPResponse, write: Callable[[bytes], object], have: int) -> None:
        """Copy what comes behind the first bytes, never more than the whole has."""
        size = self.file.size
        for chunk in self.client.chunks(response):
            percent, have = have * 100 // size, have + len(chunk)
            if have > size:
                self.forget()
                raise ModelError(
                    f"the hub sends more of {self.file.path} than the {size} bytes that it states: try again later"
                )
            write(chunk)
            if have * 100 // size > percent:
                self.shows(have)

    def is_right(self) -> bool:
        """Return whether the partial file has the digest of the whole: SHA-256, or that of Git's object."""
        is_large = len(self.file.digest) == SHA256_DIGITS
        digest = hashlib.sha256() if is_large else hashlib.sha1(b"blob %d\0" % self.file.size, usedforsecurity=False)
        with self.partial.open("rb") as read:
            while chunk := read.read(COPY_BYTES):
                digest.update(chunk)
        return digest.hexdigest() == self.file.digest

    def forget(self) -> None:
        self.partial.unlink(missing_ok=True)
        self.tag.unlink(missing_ok=True)


def partial_of(blob: Path) -> Path:
    """Return the path of the bytes of a blob that were fetched so far."""
    return blob.with_name(f"{blob.name}.partial")


def size_of(path: Path) -> int:
    """Return the size of a file, 0 without one."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def strong_tag(response: HTTPResponse) -> str | None:
    """Return the response's ETag where If-Range may have it: a weak one may not."""
    tag = response.headers.get("ETag", "")
    is_strong = tag.startswith('"') and tag.endswith('"') and tag.isascii() and tag.isprintable()
    return tag if is_strong and len(tag) <= MOST_TAG else None
