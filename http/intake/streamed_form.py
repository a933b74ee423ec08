# SPDX-License-Identifier: Apache-2.0
"""Bodies of the type multipart/form-data that hold one large file, read piece by piece: the file is written as it
comes, and never in memory as a whole. Pure but for `write`."""

from collections.abc import Callable

from pontil.http.intake.multipart import FILE, FILE_NAME, MOST_HEAD, MOST_PARTS, broken, read_head
from pontil.runtime.errors import RequestError

# Bytes of a field that is no file.
MOST_FIELD = 4096


class StreamedForm:
    """A form whose pieces are fed in order, then `end`. The contents of its file go to `write`; the `fields` are there
    at the end, and the file's name. Raises RequestError for what is no such form."""

    def __init__(self, boundary: bytes, write: Callable[[bytes], None]) -> None:
        self.mark, self.write = b"\r\n--" + boundary, write
        # A boundary begins a line, the first one too.
        self.buffer = bytearray(b"\r\n")
        self.step: Callable[[], bool] = self.skip_preamble
        self.fields: dict[str, bytes] = {}
        self.name: str | None = None
        self.file_name: str | None = None
        self.is_over = False
        self.parts = 0

    def feed(self, piece: bytes) -> None:
        self.buffer += piece
        while self.step():
            pass

    def end(self) -> None:
        if not self.is_over:
            raise broken("its closing boundary is missing")

    def skip_preamble(self) -> bool:
        place = self.buffer.find(self.mark)
        if place < 0:
            del self.buffer[: max(0, len(self.buffer) - len(self.mark))]
            return False
        del self.buffer[: place + len(self.mark)]
        self.step = self.read_mark
        return True

    def read_mark(self) -> bool:
        """Read what follows a boundary: two hyphens at the end, else the end of its line."""
        if len(self.buffer) < 2:
            return False
        if self.buffer.startswith(b"--"):
            self.is_over, self.step = True, self.skip_rest
            return True
        place = self.buffer.find(b"\r\n", 0, MOST_HEAD)
        if place < 0 and len(self.buffer) < MOST_HEAD:
            return False
        if place < 0 or self.buffer[:place].strip(b" \t"):
            raise broken("a boundary is followed by other bytes")
        del self.buffer[: place + 2]
        self.step = self.read_part_head
        return True

    def read_part_head(self) -> bool:
        place = self.buffer.find(b"\r\n\r\n", 0, MOST_HEAD)
        if place < 0:
            if len(self.buffer) >= MOST_HEAD:
                raise broken("a part has no headers, or too long ones")
            return False
        name, disposition = read_head(bytes(self.buffer[:place]))
        self.parts += 1
        if self.parts > MOST_PARTS:
            raise broken(f"it has more than {MOST_PARTS} parts")
        if name in self.fields or (FILE.search(disposition) and self.file_name is not None):
            raise RequestError(f"{name:.64} is there twice: send it once", param=name[:64])
        del self.buffer[: place + 4]
        if FILE.search(disposition):
            match = FILE_NAME.search(disposition)
            self.name, self.file_name = None, "" if match is None else (match[1] or match[2] or "")
        else:
            self.name = name
            self.fields[name] = b""
        self.step = self.read_contents
        return True

    def read_contents(self) -> bool:
        place = self.buffer.find(self.mark)
        # Its last bytes may be the beginning of a boundary.
        count = max(0, len(self.buffer) - len(self.mark)) if place < 0 else place
        if count:
            self.take(bytes(self.buffer[:count]))
            del self.buffer[:count]
        if place < 0:
            return False
        del self.buffer[: len(self.mark)]
        self.step = self.read_mark
        return True

    def take(self, data: bytes) -> None:
        if self.name is None:
            self.write(data)
            return
        self.fields[self.name] += data
        if len(self.fields[self.name]) > MOST_FIELD:
            raise RequestError(f"{self.name:.64} is longer than {MOST_FIELD} bytes: shorten it", param=self.name[:64])

    def skip_rest(self) -> bool:
        self.buffer.clear()
        return False
