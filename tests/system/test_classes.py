# SPDX-License-Identifier: Apache-2.0
"""Classes and shares of a real launch: who gives way pauses in the middle of an answer, and has the same tokens."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from command_line import app
from served import Served, launched
from tiny_llama import write_tiny_llama

KEYS = {"ann": "sk-ann-0123456789", "bob": "sk-bob-0123456789", "admin": "adm-0123456789-adm"}
PROMPT = "the glazier whispered quietly to the judge"
TOKENS = 1500


def asked(served: Served, name: str, **fields: Any) -> Any:
    body = {"model": "tiny", "prompt": PROMPT, "seed": 3, "ignore_eos": True} | fields
    return served.request("POST", "/v1/completions", body, {"authorization": f"Bearer {KEYS[name]}"})


def whole(served: Served, name: str, **fields: Any) -> dict[str, Any]:
    reply = asked(served, name, **fields)
    answer: dict[str, Any] = reply.json()
    assert reply.status == 200, answer
    return answer


def text_of(events: list[str]) -> str:
    return "".join(choice["text"] for event in events if event[0] == "{" for choice in json.loads(event)["choices"])


def ends(events: list[str]) -> bool:
    return events[-1] == "[DONE]"


@pytest.mark.parametrize(
    "flags", [(), pytest.param(("--fair-by", "none"), marks=pytest.mark.long)], ids=["by key", "none"]
)
def test_a_batch_answer_pauses_for_others_and_goes_on_with_the_same_tokens(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    """The worker has one seat, so that the other answer comes while the first one pauses."""
    model = tmp_path / "tiny"
    write_tiny_llama(model, max_model_len=4096)
    path = tmp_path / "keys"
    path.write_text(f"ann={KEYS['ann']} share=4 class=interactive\nbob={KEYS['bob']} class=batch\n")
    path.chmod(0o600)
    options = ("--model", str(model), "--role", "mixed", "--kv-cache-memory", "16MiB", "--max-num-seqs", "1")
    keys = ("--api-keys", str(path), *flags)
    with launched(tmp_path, *options, *keys, variables={"PONTIL_ADMIN_KEY": KEYS["admin"]}) as served:
        alone = whole(served, "bob", max_tokens=TOKENS)
        assert alone["service_tier"] == "flex" and alone["usage"].get("share") is None
        reply = asked(served, "bob", max_tokens=TOKENS, stream=True)
        events, has_begun = list[str](), threading.Event()

        def read() -> None:
            for event in reply.events():
                events.append(event)
                has_begun.set()

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        assert has_begun.wait(60)
        usage = whole(served, "ann", max_tokens=8)["usage"]
        assert reader.is_alive() and not ends(events), "the batch answer goes on"
        assert (usage["service_tier"], usage.get("share")) == ("priority", None if flags else 4.0)
        reader.join(120)
        assert not reader.is_alive() and text_of(events) == alone["choices"][0]["text"]
        shown = app("status", f"http://127.0.0.1:{served.port}", PONTIL_ADMIN_KEY=KEYS["admin"]).stdout
        rows = [line.split() for line in shown.splitlines()]
        assert ["ann", "interactive", "4", "1"] in [row[:4] for row in rows], shown
        assert ["bob", "batch", "1", "2"] in [row[:4] for row in rows], shown
