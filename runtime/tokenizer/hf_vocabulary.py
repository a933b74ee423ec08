# SPDX-License-Identifier: Apache-2.0
"""The tokenizer of a Hugging Face directory: tokenizer.json, and tokenizer_config.json for roles and the template.

tokenizer.json alone decides with which token a text begins, as in transformers: `add_bos_token` is the older form.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from pontil.runtime.errors import ModelError
from pontil.runtime.tokenizer.vocabulary import Vocabulary, bytes_of_all, ids_of, special_ids

ROLES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")

TEMPLATES = ("default", "tool_use")
"""The second one is for chats with tools; without it the first one serves them too."""


def read_hf_vocabulary(directory: Path) -> Vocabulary:
    """Read the tokenizer. Raises ModelError for a missing or damaged file and for an unknown family of tokenizers."""
    backend = read_backend(directory / "tokenizer.json")
    config = read_config(directory / "tokenizer_config.json")
    roles = {role: token for role in ROLES if (token := token_text(config.get(role))) is not None}
    templates = chat_templates(directory, config)
    mark_special(backend, [*roles.values(), *listed_tokens(config)])
    return Vocabulary(
        make_backend=lambda: backend,
        token_bytes=bytes_of_all(backend),
        added_tokens=backend.get_added_tokens_decoder(),
        special_ids=special_ids(backend),
        roles=roles,
        end_ids=ids_of(backend, [roles.get("eos_token")]),
        chat_template=templates.get("default"),
        tool_template=templates.get("tool_use"),
    )


def read_backend(path: Path) -> Tokenizer:
    """Load tokenizer.json without the truncation and padding that a file may ask for: a server must see every token."""
    content = read_text(path)
    if content is None:
        raise ModelError(f"{path} is missing: fetch the model's tokenizer.json")
    try:
        backend = Tokenizer.from_str(content)
    except Exception as error:
        if type(error) is not Exception:  # the library raises nothing narrower for a file it cannot read
            raise
        raise ModelError(f"{path} is damaged ({error}): fetch it again") from error
    backend.no_truncation()
    backend.no_padding()
    return backend


def read_config(path: Path) -> dict[str, Any]:
    """Read a configuration file; empty when there is none."""
    try:
        data = json.loads(read_text(path) or "{}")
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not JSON: fetch it again") from error
    if not isinstance(data, dict):
        raise ModelError(f"{path} holds no JSON object: fetch it again")
    return data


def read_text(path: Path) -> str | None:
    """Read a text file; None when there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} cannot be read ({error}): fetch it again") from error


def mark_special(backend: Tokenizer, tokens: Iterable[str | None]) -> None:
    """Mark tokens with a role as special even if tokenizer.json omits it; none is added to the vocabulary."""
    known_ids = special_ids(backend)
    missing = [token for token in dict.fromkeys(tokens) if token and not known_ids.issuperset(ids_of(backend, [token]))]
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in missing])


def listed_tokens(config: dict[str, Any]) -> list[str | None]:
    lists = (config.get(key) for key in ("additional_special_tokens", "extra_special_tokens"))
    return [token_text(item) for token_list in lists if isinstance(token_list, list) for item in token_list]


def token_text(value: Any) -> str | None:
    """The text of a token's role, which is given as text or as an object with its content."""
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else None


def chat_templates(directory: Path, config: dict[str, Any]) -> dict[str, str]:
    """The chat templates by name, those of TEMPLATES that exist. Files are the newer form."""
    template = config.get("chat_template")
    items = template if isinstance(template, list) else [{"name": "default", "template": template}]
    templates = {item.get("name"): item.get("template") for item in items if isinstance(item, dict)}
    templates |= {"default": read_text(directory / "chat_template.jinja") or templates.get("default")}
    templates |= {
        "tool_use": read_text(directory / "additional_chat_templates" / "tool_use.jinja") or templates.get("tool_use")
    }
    return {name: text for name, text in templates.items() if name in TEMPLATES and isinstance(text, str)}
