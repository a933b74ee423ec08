# SPDX-License-Identifier: Apache-2.0
"""A form that comes in pieces is read as one that is whole, wherever it is cut."""

from random import Random

import pytest

from pontil.http.intake.multipart import read_form
from pontil.http.intake.streamed_form import MOST_FIELD, StreamedForm
from pontil.runtime.errors import RequestError

HEAD = b'--x\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
FILE = b'--x\r\ncontent-disposition: form-data; name="file"; filename="a b.jsonl"\r\n\r\n'


def read(body: bytes, size: int) -> tuple[StreamedForm, bytes]:
    written: list[bytes] = []
    form = StreamedForm(b"x", written.append)
    for begin in range(0, len(body), size):
        form.feed(body[begin : begin + size])
    form.end()
    return form, b"".join(written)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 10_000])
def test_it_is_read_alike_in_pieces_of_any_size(size: int) -> None:
    contents = bytes(Random(1).choices(b"-x\r\n{}a", k=3000))
    contents = contents.replace(b"\r\n--x", b"")
    body = b"preamble\r\n" + HEAD + FILE + contents + b"\r\n--x--\r\nrest"
    form, written = read(body, size)
    whole = read_form(body, b"x")
    assert written == contents == whole["file"].data
    assert form.fields == {"purpose": b"batch"} and form.file_name == "a b.jsonl"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "closing boundary"),
        (HEAD, "closing boundary"),
        (HEAD + FILE + b"contents\r\n--x", "closing boundary"),
        (HEAD + HEAD + b"--x--", "is there twice"),
        (FILE + b"a\r\n" + FILE + b"b\r\n--x--", "is there twice"),
        (b"--xy\r\n\r\n--x--", "followed by other bytes"),
        (b"--x\r\nno-name: a\r\n\r\n\r\n--x--", "has no name"),
        (b"--x\r\n" + b"a: b\r\n" * 2000, "no headers, or too long"),
        (HEAD.replace(b"batch", b"b" * (MOST_FIELD + 1)) + b"--x--", "is longer than"),
        (b"".join(HEAD.replace(b"purpose", b"%d" % n) for n in range(70)) + b"--x--", "more than 64 parts"),
    ],
)
def test_what_is_no_such_form_is_refused(body: bytes, says: str) -> None:
    for size in (5, 100_000):
        with pytest.raises(RequestError, match=says):
            read(body, size)
