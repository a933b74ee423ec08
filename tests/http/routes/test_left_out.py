# SPDX-License-Identifier: Apache-2.0
"""The routes of rooms that are left out of an installation."""

from pathlib import Path

import pytest
from scripted_site import site

from pontil.http.openai.completions import sounds
from pontil.http.routes import page
from pontil.runtime.tokenizer.tokenizer import Tokenizer


def test_a_page_that_is_left_out_says_so(tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "missing", lambda name: f"{name} is left out")
    with site(tmp_path, tokenizer) as made:
        made.pair()
        shown = made.ask("GET", "/admin/ui")
        assert shown.status == 404 and shown.json["error"]["message"] == "page is left out"
        assert "/admin/events" not in made.ask("GET", "/openapi.json").json["paths"]
        assert made.ask("GET", "/ready").status == 200


def test_sound_that_is_left_out_says_so(tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sounds, "missing", lambda name: f"{name} is left out")
    with site(tmp_path, tokenizer) as made:
        made.pair()
        chat = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 3}
        assert made.ask("POST", "/v1/chat/completions", chat).status == 200
        refused = made.ask("POST", "/v1/chat/completions", chat | {"modalities": ["text", "audio"]})
        assert refused.status == 400 and refused.json["error"]["message"] == "sound is left out"
        assert refused.json["error"]["param"] == "modalities"
        recording = {"type": "input_audio", "input_audio": {"format": "wav", "data": ""}}
        heard = {"messages": [{"role": "user", "content": [recording]}]}
        assert made.ask("POST", "/v1/chat/completions", heard).status == 400
        spoken = made.ask("POST", "/v1/audio/speech", {"input": "Hello!"})
        assert spoken.status == 404 and spoken.json["error"]["message"] == "sound is left out"
