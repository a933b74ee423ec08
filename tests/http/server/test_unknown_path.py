# SPDX-License-Identifier: Apache-2.0
"""The response to an unknown path tells the client what to do."""

import pytest
from scripted_site import ScriptedSite

from pontil.http.server.error_handler import ABSENT, what_to_say

KNOWN = {"/v1/completions", "/v1/chat/completions", "/v1/models", "/tokenize", "/health"}


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/v1/conversations/conv_1", "use previous_response_id"),
        ("/v1/classify", "sorts texts into classes"),
        ("/v1/audio/speech", "audio is not served"),
        ("/api/pull", "models are not kept here"),
        ("/api/nothing", "of Ollama's API there are"),
        ("/chat/completions", "did you mean /v1/chat/completions?"),
        ("/v1/v1/chat/completions", "did you mean /v1/chat/completions?"),
        ("/v1/chat/completions/", "did you mean /v1/chat/completions?"),
        ("/models", "did you mean /v1/models?"),
        ("/v1/tokenize", "did you mean /tokenize?"),
        ("/v1/health", "did you mean /health?"),
        ("/v1/responsesX", "see /v1/completions"),
        ("/", "see /v1/completions"),
        ("", "see /v1/completions"),
        ("/v1", "see /v1/completions"),
    ],
)
def test_one_sentence(path: str, says: str) -> None:
    said = what_to_say(path, KNOWN)
    assert said.startswith(f"there is nothing at {path}: ") and says in said


def test_it_is_what_the_server_says(pair: ScriptedSite) -> None:
    for beginning, says in ABSENT:
        answer = pair.ask("POST", beginning, {})
        error = answer.json["error"]
        assert answer.status == 404 and (error if isinstance(error, str) else error["message"]).endswith(says)
    assert "did you mean /v1/models?" in pair.ask("GET", "/models").json["error"]["message"]
