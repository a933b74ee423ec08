# SPDX-License-Identifier: Apache-2.0
"""Served proxies whose models write calls and reasoning, with workers that say what a test gives them."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from chat_styles import LLAMA_3, MISTRAL, QWEN_3
from scripted_site import ScriptedSite, site
from tiny_llama import byte_level_tokenizer, tokenizer_config, write_json
from tokenizers import AddedToken

from pontil.runtime.tokenizer.tokenizer import Tokenizer, load_tokenizer
from pontil.runtime.tokenizer.vocabulary import MESSAGE_MARKERS

MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]")
OPENING = "{% for m in messages %}{{ m.content }}\n{% endfor %}{{ (tools or []) | length }}<think>\n"
HARMONY = (
    "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}{{ tools }}<|channel|>"
)
TEMPLATES = {"qwen": QWEN_3, "llama": LLAMA_3, "opening": OPENING, "mistral": MISTRAL, "harmony": HARMONY}


class Sites:
    """A served proxy for each template, with a worker that sends a given text. `config` is all proxies'."""

    def __init__(self, folder: Path, stack: ExitStack, **config: Any) -> None:
        self.folder, self.stack, self.config = folder, stack, config
        self.made: dict[str, ScriptedSite] = {}

    def saying(self, template: str, text: str) -> ScriptedSite:
        if template not in self.made:
            folder = self.folder / template
            (folder / "control").mkdir(parents=True)
            served = site(folder / "control", tokenizer_with(folder, TEMPLATES[template]), **self.config)
            self.made[template] = self.stack.enter_context(served)
            self.made[template].worker(max_model_len=4096)
        found = self.made[template]
        found.workers[0].answer = found.tokenizer.encode(text, False)
        return found


def tokenizer_with(folder: Path, template: str) -> Tokenizer:
    """Return a tokenizer of bytes, with the markers as tokens of their own."""
    backend = byte_level_tokenizer()
    backend.add_tokens([AddedToken(marker, special=False, normalized=False) for marker in MARKERS])
    if template == HARMONY:
        backend.add_tokens([AddedToken(marker, special=True, normalized=False) for marker in MESSAGE_MARKERS])
    backend.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", tokenizer_config() | {"chat_template": template})
    return load_tokenizer(folder)
