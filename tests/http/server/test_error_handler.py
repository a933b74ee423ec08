# SPDX-License-Identifier: Apache-2.0
"""Internal errors as they appear over HTTP."""

from typing import Any

import pytest
from scripted_site import ScriptedSite

from pontil.runtime.errors import ModelError, PontilError, RequestError, TooManyRequests, Unavailable


@pytest.mark.parametrize(
    ("error", "status", "retry_after", "kind"),
    [
        (Unavailable("full"), 503, "1", "server_error"),
        (Unavailable("full", retry_after=7.2), 503, "8", "server_error"),
        (Unavailable("full", retry_after=0.0), 503, "1", "server_error"),
        (ModelError("broken"), 503, "1", "server_error"),
        (TooManyRequests("full", retry_after=0.3), 429, "1", "rate_limit_error"),
        (TooManyRequests("full", retry_after=61.0), 429, "61", "rate_limit_error"),
        (RequestError("no"), 400, None, "invalid_request_error"),
    ],
)
def test_when_to_try_again_is_a_header(
    pair: ScriptedSite,
    monkeypatch: pytest.MonkeyPatch,
    error: PontilError,
    status: int,
    retry_after: str | None,
    kind: str,
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise error

    for way in ("submit", "submit_all"):
        monkeypatch.setattr(pair.proxy, way, refuse, raising=False)
    for stream in (False, True):
        answer = pair.complete(stream=stream)
        assert (answer.status, answer.headers["retry-after"]) == (status, retry_after)
        assert answer.json["error"]["type"] == kind and answer.json["error"]["message"] == str(error)
