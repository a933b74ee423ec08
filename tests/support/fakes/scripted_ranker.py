# SPDX-License-Identifier: Apache-2.0
"""A scripted worker that scores pairs of texts, by numbers that are known."""

import struct
from collections.abc import Iterator
from typing import Any

from scripted_site import ScriptedSite
from scripted_worker import ScriptedWorker, vector_of

from pontil.runtime.wire.messages import Embed, Message

HELLO: dict[str, Any] = {
    "model": "ranker",
    "model_fingerprint": "r",
    "kv_fingerprint": "",
    "embedding_size": 1,
    "max_model_len": 32,
    "block_size": 32,
}


def value_of(embed: Embed) -> float:
    """The score of a pair by a scripted worker: 16ths, which no rounding changes."""
    return sum(embed.prompt) % 16 / 16


def score_of(worker: ScriptedWorker, embed: Embed) -> Iterator[Message]:
    return vector_of(worker, embed, vector=struct.pack("<f", value_of(embed)))


def ranker(made: ScriptedSite, name: str = "rerank:0", **options: Any) -> ScriptedWorker:
    return made.worker(name, **({"embedder": score_of} | HELLO | options))
