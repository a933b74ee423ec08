# SPDX-License-Identifier: Apache-2.0
"""The JSON of SGLang's /generate."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pontil.http.stream.reply_shape import CompletionShape, ReplyChoice
from pontil.http.stream.schema_watch import SchemaWatch
from pontil.runtime.accounting.counts import Usage
from pontil.runtime.grammar.processes.verdict import Verdict
from pontil.runtime.proxy.requests.answer import Delta, Ended
from pontil.runtime.proxy.requests.stream import Stream


class GenerateShape(CompletionShape):
    """One answer. An event of a stream has the whole text so far, as SGLang's have; the last one has the ids too."""

    said = ""

    def whole(
        self, choices: Sequence[ReplyChoice], usage: Usage, verdicts: Mapping[int, Verdict] | None = None
    ) -> dict[str, Any]:
        (choice,) = choices
        ended = Ended(0, choice.reason or "stop", choice.stop_reason)
        return {"text": choice.text, "output_ids": choice.ids, "meta_info": self.about(usage, ended)}

    def event(self, stream: Stream, index: int, one: Delta | Ended) -> bytes:
        if self.schema_watch is not None:
            self.schema_watch.observe(index, one)
        if isinstance(one, Ended):
            return b"" if self.schema_watch is not None else self.last(stream, one)
        if not one.text:
            return b""
        self.said += one.text
        return framed({"text": self.said, "meta_info": self.about(stream.usage, None)})

    def closing(self, watch: SchemaWatch, stream: Stream, verdicts: Mapping[int, Verdict]) -> bytes:
        return b"".join(self.last(stream, ended) for ended in watch.ended.values())

    def last(self, stream: Stream, ended: Ended) -> bytes:
        ids = stream.request.answers[0].ids
        return framed({"text": self.said, "output_ids": ids, "meta_info": self.about(stream.usage, ended)})

    def about(self, usage: Usage, ended: Ended | None) -> dict[str, Any]:
        return {
            "id": self.base["id"],
            "finish_reason": None if ended is None else finish(ended, usage),
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "cached_tokens": usage.cached_tokens,
        }


def finish(ended: Ended, usage: Usage) -> dict[str, Any]:
    """Return what SGLang tells of an answer's end."""
    if ended.reason == "length":
        return {"type": "length", "length": usage.completion_tokens}
    return {"type": ended.reason, "matched": ended.stop_reason}


def framed(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"
