# SPDX-License-Identifier: Apache-2.0
"""Recorded conversations with a model that has states: what their turns repeat is found (docs/decisions/138)."""

from conversation_replay import ConversationReplay, states_layout
from recorded_load import recorded_conversations

from pontil.runtime.cache.prefix import STATE_TOKENS

# All turns of these take a few seconds.
SOME = recorded_conversations()[:120]


def replayed(blocks: int, boundary: int = STATE_TOKENS) -> ConversationReplay:
    replay = ConversationReplay(states_layout(boundary), blocks)
    replay.run(SOME, rate=1.0)
    return replay


def test_turns_find_all_but_the_last_token_of_what_was_said() -> None:
    """Each earlier turn's last token was never computed."""
    replay = replayed(4000)
    assert replay.said > 100_000 and replay.said - replay.cached == replay.turns - len(SOME)
    assert replay.copied <= 2 * replay.turns


def test_a_pool_that_is_full_still_finds_most() -> None:
    assert replayed(250).share > 0.95
