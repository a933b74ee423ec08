# SPDX-License-Identifier: Apache-2.0
"""Requests as coding agents send them, recorded from real ones with their texts cut away, are taken. What no answer
depends on is named."""

from typing import Any

import pytest
from agent_shapes import recorded
from open_agents import OPEN_AGENTS, OpenAgent

from pontil.http.anthropic.request import read_messages_request
from pontil.http.anthropic.thinking_seal import ThinkingSeal
from pontil.http.openai.chat.request import read_chat
from pontil.http.openai.responses.request import read_responses
from pontil.http.schema.reader import IgnoredFields

VOCABULARY = 1000


def read(path: str, body: dict[str, Any], ignored: IgnoredFields) -> Any:
    if path == "/v1/messages":
        return read_messages_request(body, VOCABULARY, ignored, seal=ThinkingSeal(b"k" * 32))
    return {"/v1/responses": read_responses, "/v1/chat/completions": read_chat}[path](body, VOCABULARY, ignored)


@pytest.mark.parametrize("agent", OPEN_AGENTS, ids=lambda agent: agent.key)
def test_a_recorded_request_is_taken(agent: OpenAgent) -> None:
    shape = recorded()[agent.key]
    ignored = IgnoredFields()
    read(shape["path"], shape["body"], ignored)
    assert shape["path"] == agent.path and shape["version"] == agent.version
    # Fields that the model's template does not read are added to these.
    assert set(ignored.names) <= set(shape["ignored"].split(", "))
