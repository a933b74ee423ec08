# SPDX-License-Identifier: Apache-2.0
"""The usage objects of completions and chats."""

from dataclasses import replace
from typing import Any

from pontil.runtime.accounting.counts import Usage
from pontil.runtime.proxy.requests.answer import Delta, Ended


def usage_object(usage: Usage) -> dict[str, Any]:
    """Return the usage object of /v1/completions, where no tokens are told apart from others."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


# No token of a prompt is audio where recordings become text. Predictions are sent by a client, which is not
# supported: the server's own drafts are no predictions, and clients would take rejected ones as billed.
PROMPT_DETAILS = {"audio_tokens": 0}
COMPLETION_DETAILS = {
    "audio_tokens": 0,
    "accepted_prediction_tokens": 0,
    "rejected_prediction_tokens": 0,
}


def chat_usage_object(usage: Usage, reasoning_tokens: int | None, prompt_details: dict[str, int]) -> dict[str, Any]:
    """Return the usage object of a chat, without reasoning tokens if they could not be counted."""
    usage_fields = usage_object(usage)
    reasoning = {} if reasoning_tokens is None else {"reasoning_tokens": reasoning_tokens}
    audio = {"audio_tokens": usage.audio_tokens} if usage.audio_tokens else {}
    return usage_fields | {
        "prompt_tokens_details": usage_fields["prompt_tokens_details"] | prompt_details,
        "completion_tokens_details": reasoning | COMPLETION_DETAILS | audio,
    }


def usage_before(usage: Usage | None, choice_event: Delta | Ended) -> Usage | None:
    """Return the running usage, if there is one, as it was before the tokens of this event."""
    if usage is None or isinstance(choice_event, Ended):
        return usage
    return replace(usage, completion_tokens=max(0, usage.completion_tokens - len(choice_event.ids)))
