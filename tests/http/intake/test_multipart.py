# SPDX-License-Identifier: Apache-2.0
"""Forms: what was written is read, and any other bytes are refused in a sentence."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pontil.http.intake.multipart import MOST_HEAD, MOST_PARTS, boundary_of, read_form
from pontil.runtime.errors import RequestError

NAMES = st.text("abcdefgh[]", min_size=1, max_size=8)


def written(parts: dict[str, bytes], files: set[str], mark: bytes) -> bytes:
    body = b""
    for name, data in parts.items():
        file = '; filename="x"' if name in files else ""
        head = f'Content-Disposition: form-data; name="{name}"{file}\r\nContent-Type: text/plain'
        body += b"--" + mark + b"\r\n" + head.encode() + b"\r\n\r\n" + data + b"\r\n"
    return body + b"--" + mark + b"--\r\n"


@given(st.dictionaries(NAMES, st.binary(max_size=40), min_size=1, max_size=5), st.sets(NAMES))
def test_what_was_written_is_read(parts: dict[str, bytes], files: set[str]) -> None:
    parts = {name: data for name, data in parts.items() if b"\r\n--b" not in data}
    found = read_form(written(parts, files, b"b1"), b"b1")
    assert {name: part.data for name, part in found.items()} == parts
    assert {name for name, part in found.items() if part.is_file} == files & parts.keys()


@given(st.lists(st.sampled_from([b"--b", b"\r\n", b"--", b"x", b":", b'name="a"', b"Content-Disposition: form-data; ",
                                 b"\0", b"\xff", b"filename=", b"\r\n\r\n", b" "]), max_size=30))  # fmt: skip
def test_anything_else_is_refused_in_a_sentence(pieces: list[bytes]) -> None:
    try:
        read_form(b"".join(pieces), b"b")
    except RequestError as error:
        assert error.status == 400 and "\n" not in str(error)


def test_parts_are_few_and_their_heads_short() -> None:
    read_form(written({str(number): b"" for number in range(MOST_PARTS)}, set(), b"b"), b"b")
    with pytest.raises(RequestError, match=f"more than {MOST_PARTS} parts"):
        read_form(written({str(number): b"" for number in range(MOST_PARTS + 1)}, set(), b"b"), b"b")
    with pytest.raises(RequestError, match="too long ones"):
        read_form(written({"a" * MOST_HEAD: b""}, set(), b"b"), b"b")
    with pytest.raises(RequestError, match="file is there twice"):
        one = written({"file": b"1"}, set(), b"b")
        read_form(one.removesuffix(b"--\r\n") + b"\r\n" + one.removeprefix(b"--b\r\n"), b"b")


def test_a_form_is_read_as_it_was_written() -> None:
    body = b'pre\r\n--x \r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n--x\r\nX: y\r\ncontent-disposition: ' \
           b"form-data; name=f; filename=q\r\n\r\n\r\n--x--"  # fmt: skip
    parts = read_form(body, b"x")
    assert (parts["a"].text, parts["f"].text, parts["f"].data) == ("1", None, b"")
    for wrong in (b"", b"--x", b"--x\r\n\r\n--x--", b"--xy\r\n",
                  b"--x\r\nContent-Disposition: form-data\r\n\r\n1\r\n--x--",
                  b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n1'):  # fmt: skip
        with pytest.raises(RequestError, match="no whole multipart form"):
            read_form(wrong, b"x")


@pytest.mark.parametrize(
    ("stated", "boundary"),
    [
        ("multipart/form-data; boundary=abc", b"abc"), ('Multipart/Form-Data; charset=x; BOUNDARY="a;b"', b"a;b"),
        ("multipart/form-data", None), ("multipart/mixed; boundary=a", None), ("", None),
        ("multipart/form-data; boundary=", None),
    ],
)  # fmt: skip
def test_the_boundary_is_the_stated_one(stated: str, boundary: bytes | None) -> None:
    assert boundary_of(stated) == boundary
