# SPDX-License-Identifier: Apache-2.0
"""Checks of what clients see of an answer: its text, and the order of its events."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from answer_forms import CHAT, CLOSING, DELTA, FINISHES, OPENING, RANKING, RESPONSE
from clients import ClientTry, ClientWish
from hash_model import answer_of
from hash_vectors import score_of, vector_of
from releases import salt_of_answer

if TYPE_CHECKING:
    from seed_run import SeedRun

# Seconds after its window until a stream is gone in any case: it may end at the end of its window, and is kept for one
# more; and seconds in which somebody looks for records that are too old.
ENDS_WITHIN, LOOKED_FOR = 4.0, 1.0
# Last events of a stream that breaks, in place of its end.
FAILURES = ("error", "response.failed")


def texts_equal_the_oracle(run: "SeedRun") -> Iterator[str]:
    """The text of each answer is that of the right tokens, up to its stop string; of one that broke off, a part."""
    decode = run.model.tokenizer.decode
    for call in run.calls:
        wish = call.wish
        for one in call.tries:
            salt = salt_of_answer(run, wish, one)
            for choice, text in enumerate(one.texts):
                ids = answer_of(wish.prompt, wish.seed, choice, wish.max_tokens, run.model.config.vocab_size, salt)
                right = decode(ids)
                if wish.stop is not None:
                    right = right.partition(wish.stop)[0]
                if not (text == right if one.ended == "complete" else right.startswith(text)):
                    yield f"{one.name} choice {choice} has the text {text[-40:]!r}, not {right[-40:]!r}"


def vectors_equal_the_oracle(run: "SeedRun") -> Iterator[str]:
    """Each text that is embedded has its right vector, to the bit."""
    for call in run.calls:
        if (wish := call.wish.vectors) is None:
            continue
        right = [vector_of(text, wish.dimensions).tobytes() for text in wish.texts]
        for one in call.tries:
            if one.ended == "complete" and [vector.tobytes() for vector in one.vectors] != right:
                yield f"{one.name} has {len(one.vectors)} vectors for {len(right)} texts, and not the right ones"


def scores_equal_the_oracle(run: "SeedRun") -> Iterator[str]:
    """Each pair that is scored has its right score, to the bit; a ranking has the best ones, in their order."""
    for call in run.calls:
        if (wish := call.wish.scores) is None:
            continue
        right = [(place, score_of(pair)) for place, pair in enumerate(wish.pairs)]
        if call.wish.form == RANKING:
            right = sorted(right, key=lambda one: (-one[1], one[0]))[: wish.best]
        for one in call.tries:
            if one.ended == "complete" and one.scores != right:
                yield f"{one.name} has the scores {one.scores}, not {right}"


def events_come_in_their_order(run: "SeedRun") -> Iterator[str]:
    """The events of a stream are those of its form, each where it belongs, and none comes behind its end."""
    for call in run.calls:
        for one in call.tries:
            yield from (f"{one.name} {what}" for what in disorder(call.wish, one))


def a_late_reader_has_all_or_nothing(run: "SeedRun") -> Iterator[str]:
    """A stream that its client broke off and asks for again goes on to its end, or is said to be gone: this at the
    latest when its window and the time of an answer are over, where nothing was amiss."""
    for call in run.calls:
        for one in call.tries:
            left, back = one.left_at, one.back_at
            if left is None or back is None or back < left:
                continue
            if one.ended == "broken" and run.watch.was_calm(back, one.ended_at):
                yield f"{one.name} came back after {back - left:.1f} s, and has a part"
            late = back - left > run.plan.resume_window + ENDS_WITHIN
            if one.ended == "complete" and late and run.watch.was_calm(back - LOOKED_FOR, one.ended_at):
                yield f"{one.name} came back after {back - left:.1f} s, and has its answer"


def disorder(wish: ClientWish, one: ClientTry) -> Iterator[str]:
    """Yield what is wrong with the order of a try's events."""
    yield from one.odd
    if not wish.stream:
        return
    kinds = [kind for kind in one.events if kind not in FAILURES]
    if wish.form == RESPONSE:
        yield from response_disorder(kinds)
        return
    # The end has no id: a client that breaks a stream off behind it is told it again.
    ends = ["done"] * (one.continued + 1)
    while ends and kinds[-1:] == ["done"]:
        kinds.pop()
        ends.pop()
    if one.ended == "complete" and (kinds[-1:] != ["usage"] or len(ends) > one.continued):
        yield f"ends with {one.events[-4:]}"
    if {"usage", "done"} & set(kinds[:-1]):
        yield f"goes on behind its end with {one.events[-4:]}"
    for index in range(wish.choices):
        own = [kind.split()[0] for kind in kinds if kind.endswith(f" {index}")]
        if "end" in own[:-1] or "role" in own[1:] or wish.form == CHAT and own and own[0] != "role":
            yield f"has choice {index} in the order {own[:3]} … {own[-3:]}"


def response_disorder(kinds: list[str]) -> Iterator[str]:
    """Yield what is wrong with the order of a response's events: there is one item, of one part."""
    count = kinds.count(DELTA)
    right = [*OPENING, *[DELTA] * count, *CLOSING]
    if kinds and kinds[-1] in FINISHES:
        right.append(kinds[-1])
    else:
        right = right[: len(kinds)]
    if kinds != right:
        yield f"has its events in the order {[kind for kind in kinds if kind != DELTA]}, with {count} deltas"
