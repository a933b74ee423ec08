# SPDX-License-Identifier: Apache-2.0
"""A record of a running server's requests, written to a file as they are answered."""

import hashlib
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pontil.launcher.foundation.errors import LaunchError, OptionError

# Seconds of silence after which a server that shows every second that it is there is given up.
SILENCE = 15.0
MOST_LINE = 1 << 24


@dataclass(frozen=True, slots=True)
class RecordLimits:
    """The bounds of a record: so many requests, of one in `one_in` that come, so many bytes, and so many seconds, which
    is the age of its oldest request when it is complete. Of a `redacted` one there are digests alone."""

    requests: int
    one_in: int
    size: int
    seconds: float
    redacted: bool = False


class RecordFile:
    """The file, which only its owner can read. It appears when it is complete, and replaces no other one. So many
    requests were `left_out`, as the server says."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        self.digest = hashlib.sha256()
        self.requests = self.size = self.left_out = 0

    def open(self) -> IO[bytes]:
        """Raises OptionError."""
        if self.path.exists():
            raise OptionError(f"{self.path} is there already: name a new file.")
        try:
            descriptor = os.open(self.draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise OptionError(f"{self.path} cannot be written ({error.strerror}): name another file.") from None
        return os.fdopen(descriptor, "wb")

    def write(self, file: IO[bytes], line: bytes) -> None:
        file.write(line)
        self.digest.update(line)
        self.size += len(line)

    def finish(self, file: IO[bytes]) -> None:
        """Make the file appear, complete."""
        from pontil.runtime.receipts.record import last_line

        file.write(last_line(self.requests, self.digest.hexdigest()))
        file.flush()
        os.fsync(file.fileno())
        # A link, unlike a rename, never replaces an existing file.
        os.link(self.draft, self.path)


def write_record(
    url: str, key: Mapping[str, str], path: Path, limits: RecordLimits, begun: Callable[[], None]
) -> RecordFile:
    """Record until a limit is reached, the server ends, or Ctrl-C; return the file. `begun` is called when the server
    has begun to tell them. Raises LaunchError and OptionError, without leaving a file, and if there is none to be
    recorded."""
    from pontil.runtime.receipts.record import LEFT_OUT, LEFT_OUT_LINE

    made = RecordFile(path)
    file = made.open()
    try:
        with file:
            with suppress(KeyboardInterrupt):
                lines = lines_from(url, key, limits)
                made.write(file, next(lines, b""))
                begun()
                for line in lines:
                    if line.startswith(LEFT_OUT_LINE):
                        made.left_out = int(json.loads(line)[LEFT_OUT])
                        continue
                    if made.size + len(line) > limits.size:
                        break
                    made.write(file, line)
                    made.requests += 1
                    if made.requests == limits.requests:
                        break
            if not made.requests:
                raise LaunchError("No request was answered meanwhile that fits: record for longer, or more --size.")
            made.finish(file)
    except OSError as error:
        raise LaunchError(f"{path} cannot be written ({error.strerror}): it is not there.") from None
    finally:
        made.draft.unlink(missing_ok=True)
    return made


def lines_from(url: str, key: Mapping[str, str], limits: RecordLimits) -> Iterator[bytes]:
    """Yield the lines that the server sends within the time, or until it ends. Raises LaunchError if it sends none."""
    from http.client import HTTPException

    from pontil.launcher.foundation.server_client import connect, reason

    deadline, has_begun = time.monotonic() + limits.seconds, False
    connection = connect(url, SILENCE)
    try:
        path = f"/admin/record?one_in={limits.one_in}&redacted={int(limits.redacted)}"
        connection.request("GET", path, headers=dict(key))
        response = connection.getresponse()
        if response.status != 200:
            raise LaunchError(f"{reason(response.read(MOST_LINE), response.status)}.")
        # The server sends an empty line every second, so that a deadline is seen.
        while time.monotonic() < deadline and (line := response.readline(MOST_LINE)).endswith(b"\n"):
            if line.strip():
                has_begun = True
                yield line
    except (OSError, HTTPException) as error:
        if has_begun:
            return
        raise LaunchError(f"the server at {url} did not answer ({error}): is `launch` running?") from None
    finally:
        connection.close()
