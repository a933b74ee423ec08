# SPDX-License-Identifier: Apache-2.0
"""The head of a stream is what sanic would send."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sanic import HTTPResponse

from pontil.http.stream.reply import EventStreamResponse


@pytest.mark.parametrize("content_type", ["text/event-stream; charset=utf-8"])
@given(headers=st.dictionaries(st.sampled_from(["x-a", "x-b\r", "content-type"]), st.text(max_size=9)))
def test_headers_are_those_of_sanic(content_type: str, headers: dict[str, str]) -> None:
    ours = EventStreamResponse(headers=headers, content_type=content_type)
    theirs = HTTPResponse(headers=headers, content_type=content_type)
    sent = list(ours.processed_headers)
    assert sent == list(theirs.processed_headers)
    assert not any(b"\r" in part or b"\n" in part for header in sent for part in header)
