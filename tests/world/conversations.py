# SPDX-License-Identifier: Apache-2.0
"""Clients who ask for chats and responses, and go on with a conversation after its first answer."""

import random
from dataclasses import replace

from answer_forms import CHAT, RESPONSE, Message, prompt_of
from clients import ClientCall, ClientWish

from pontil.runtime.tokenizer.tokenizer import Tokenizer

# Share of seeds with such clients, and of their clients that ask for each.
CONVERSING = 0.5
CHATS, RESPONSES = 0.3, 0.3
# Share of responses that are gone on with, the most turns after the first, and the most tokens of each: what was
# answered is read again, three tokens for each that is no text.
GOES_ON, MOST_TURNS, TURN_TOKENS = 0.6, 2, 20
# Share of conversations with instructions, and the letters of each token of them.
INSTRUCTED, LETTERS = 0.4, 26
# The numbers of clients of later turns are so much higher, each time.
LATER = 10_000


def with_conversations(
    wishes: list[tuple[float, ClientWish]], chance: random.Random, tokenizer: Tokenizer
) -> list[tuple[float, ClientWish]]:
    """Return the requests of a seed, of which some are for chats and responses."""
    if chance.random() >= CONVERSING:
        return wishes
    return [(at, in_a_form(wish, chance, tokenizer)) for at, wish in wishes]


def in_a_form(wish: ClientWish, chance: random.Random, tokenizer: Tokenizer) -> ClientWish:
    draw = chance.random()
    if draw >= CHATS + RESPONSES:
        return wish
    text = letters_of(wish.prompt)
    cut = len(text) // 2 if chance.random() < INSTRUCTED else 0
    messages: tuple[Message, ...] = (("system", text[:cut]),) * bool(cut) + (("user", text[cut:]),)
    wish = replace(wish, messages=messages, prompt=prompt_of(messages, tokenizer))
    if draw < CHATS:
        return replace(wish, form=CHAT)
    wish = replace(wish, form=RESPONSE, choices=1, resumable=False, breaks=False)
    if wish.leaves is not None or chance.random() >= GOES_ON:
        return wish
    turns = tuple(f"and {chance.randrange(1000)}" for _ in range(chance.randrange(1, MOST_TURNS + 1)))
    return replace(wish, turns=turns, max_tokens=min(wish.max_tokens, TURN_TOKENS))


def letters_of(tokens: list[int]) -> str:
    """Return a letter for each token, so that texts of prompts that begin alike still do."""
    return "".join(chr(ord("a") + token % LETTERS) for token in tokens)


def next_turn(call: ClientCall, tokenizer: Tokenizer) -> ClientWish | None:
    """Return what the client of a call asks for once it has its answer, if it goes on. A conversation that was not kept
    is sent whole."""
    if call.outcome != "done" or not call.wish.turns:
        return None
    wish, last = call.wish, call.last
    messages = (*wish.messages, ("assistant", last.texts[0]), ("user", wish.turns[0]))
    return replace(
        wish, number=wish.number + LATER, messages=messages, prompt=prompt_of(messages, tokenizer),
        previous=last.answer if last.kept else None, previous_began=last.began, turns=wish.turns[1:], reads=None,
        sends=None, shuts=False,
    )  # fmt: skip
