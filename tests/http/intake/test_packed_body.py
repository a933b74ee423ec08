# SPDX-License-Identifier: Apache-2.0
"""Bodies packed by gzip are read as plain ones, and cost no more than plain ones may."""

import gzip
import json
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_site import MODEL, ScriptedSite

from pontil.http.intake.body import PackedBody
from pontil.runtime.errors import RequestError

GZIP = {"content-encoding": "gzip"}
LIMIT = 100_000
"""The largest body of the shared site."""


def ask(site: ScriptedSite, body: bytes, path: str = "/tokenize", coding: str = "gzip") -> tuple[int, object]:
    answer = site.ask("POST", path, body, {"content-encoding": coding})
    return answer.status, answer.json


@settings(deadline=None)
@given(st.binary(max_size=70_000) | st.integers(0, 70_000).map(bytes), st.integers(100, 40_000), st.integers(0, 9))
def test_what_was_packed_comes_out_in_pieces(data: bytes, size: int, level: int) -> None:
    packed, pieces = PackedBody(gzip.compress(data, level)), []
    while not packed.ended:
        pieces.append(packed.read(size))
        assert len(pieces[-1]) <= size
    assert b"".join(pieces) == data and packed.read(size) == b""


@settings(deadline=None)
@given(st.binary(max_size=2000), st.data())
def test_what_is_cut_or_damaged_is_refused(data: bytes, draw: st.DataObject) -> None:
    whole = gzip.compress(data)
    cut = draw.draw(st.integers(0, len(whole) - 1))
    for wrong in (whole[:cut], whole + b"\0", whole + whole):
        with pytest.raises(RequestError):
            packed = PackedBody(wrong)
            while not packed.ended:
                packed.read(100)


@pytest.mark.parametrize("size", [10, 30_000, 90_000])
def test_a_packed_body_is_read_as_a_plain_one(pair: ScriptedSite, size: int) -> None:
    body = json.dumps({"model": MODEL, "prompt": "a b " * (size // 4)}).encode()
    plain = pair.ask("POST", "/tokenize", body)
    for coding in ("gzip", "GZIP", "x-gzip"):
        assert ask(pair, gzip.compress(body), coding=coding) == (plain.status, plain.json)
    assert ask(pair, body, coding="identity")[0] == plain.status


def test_the_unpacked_size_is_what_counts(pair: ScriptedSite, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def watched(self: PackedBody, size: int) -> bytes:
        piece = unwatched(self, size)
        read.append(len(piece))
        return piece

    unwatched = PackedBody.read
    monkeypatch.setattr(PackedBody, "read", watched)
    bomb = gzip.compress(b" " * (64 << 20))
    assert len(bomb) < LIMIT
    status, answer = ask(pair, bomb)
    assert status == 413 and f"larger than {LIMIT} bytes" in str(answer)
    assert 0 < sum(read) <= 2 << 20, "no more than a piece beyond the limit"
    status, _ = ask(pair, gzip.compress(b"{" + b" " * LIMIT + b"}"))
    assert status == 413
    assert ask(pair, gzip.compress(bytes(range(256)) * 2000, 0))[0] == 413, "a packed body has the same limit"


@pytest.mark.parametrize(
    "body", [b"", b"{}", zlib.compress(b"{}"), gzip.compress(b"{}", mtime=0)[:-1], b"\x1f\x8b" + b"a" * 99]
)
def test_what_is_no_gzip_is_a_mistake(pair: ScriptedSite, body: bytes) -> None:
    status, answer = ask(pair, body)
    assert status == 400 and "gzip" in str(answer)


@pytest.mark.parametrize("coding", ["br", "deflate", "zstd", "gzip, gzip", "\u00e9"])
def test_other_codings_are_415(pair: ScriptedSite, coding: str) -> None:
    status, answer = ask(pair, b"{}", coding=coding)
    assert status == 415 and "content-encoding: gzip" in str(answer)
