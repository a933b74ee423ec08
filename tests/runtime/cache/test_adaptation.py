# SPDX-License-Identifier: Apache-2.0
"""Keys of blocks that are computed with an adapter from some position on: equal exactly where the KV is."""

from collections.abc import Iterator
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from pontil.runtime.cache.adaptation import NOT_ADAPTED, Adaptation, last_place
from pontil.runtime.cache.prefix import Key, chain, end_keys, full_keys, root_key, some_keys
from pontil.runtime.engine.sequences.prompt_keys import SaltedPrefix, UsedAdapter
from pontil.runtime.proxy.routing.held_prefixes import short_key
from pontil.runtime.proxy.routing.prompt_prefix import PromptPrefix

SIZE = 4
DIGESTS = ("aa" * 32, "bb" * 32)
adaptations = st.just(NOT_ADAPTED) | st.builds(Adaptation, st.sampled_from(DIGESTS), st.integers(0, 14))
texts = st.lists(st.integers(0, 1), min_size=1, max_size=13)


def meaning(text: list[int], adapted: Adaptation, end: int) -> tuple[tuple[int, str], ...]:
    """Return all that the KV of the first positions depends on: the tokens, and the adapter of each."""
    return tuple((token, adapted.digest if place >= adapted.start else "") for place, token in enumerate(text[:end]))


def keys_of(text: list[int], adapted: Adaptation) -> Iterator[tuple[int, Key]]:
    """Yield the key of each block of a text, and of each end of one, with the tokens before its end."""
    parent = root_key("")
    for first in range(0, len(text), SIZE):
        ends = end_keys(parent, text[first : first + SIZE], first, adapted)
        yield from enumerate(ends, first + 1)
        parent = ends[-1]


@given(texts, adaptations, texts, adaptations)
def test_keys_are_equal_exactly_where_tokens_and_adapters_are(
    text: list[int], adapted: Adaptation, other: list[int], otherwise: Adaptation
) -> None:
    pairs = product(keys_of(text, adapted), keys_of(other, otherwise))
    for (end, key), (other_end, other_key) in pairs:
        same = meaning(text, adapted, end) == meaning(other, otherwise, other_end)
        assert (key == other_key) == same, (end, other_end)


@given(texts, adaptations, st.integers(1, 4))
def test_every_way_to_make_keys_makes_the_same_ones(text: list[int], adapted: Adaptation, portion: int) -> None:
    made = dict(keys_of(text, adapted))
    ends = [*range(SIZE, len(text), SIZE), len(text)]
    wanted, full = [made[end] for end in ends], len(text) // SIZE
    assert list(full_keys(text, "", SIZE, adapted)) == wanted[:full]
    assert list(some_keys(root_key(""), text, SIZE, 0, adapted)) == wanted
    prefix = SaltedPrefix("", UsedAdapter(adapted.digest, 0), adapted.start)
    keys = prefix.keys_of(text, SIZE)
    while keys.left:
        keys.make(portion)
    assert keys.made == wanted and keys.ends(0) == [made[end] for end in range(1, min(SIZE, len(text) + 1))]
    answered = prefix.behind(0).keys_of(text[:1], SIZE).with_answer(text[1:])
    assert answered.all == wanted
    routed = PromptPrefix(text, "", SIZE, adapted)
    assert [short_key(key) for key in routed.every_key()] == [short_key(key) for key in wanted]
    if full:
        first = (full - 1) * SIZE
        parent = wanted[full - 2] if full > 1 else root_key("")
        assert chain(parent, text[first : full * SIZE], first, adapted) == wanted[full - 1]


@given(st.lists(st.sampled_from([0, 1, 256, 1 << 31]), max_size=12), st.lists(st.sampled_from([0, 1, 256]), min_size=1))
def test_the_last_place_of_tokens_is_found(text: list[int], tokens: list[int]) -> None:
    places = [at for at in range(len(text) - len(tokens) + 1) if text[at : at + len(tokens)] == tokens]
    assert last_place(text, tokens) == (places[-1] if places else None)


def test_a_prompt_is_adapted_from_its_last_invocation_on() -> None:
    digest = DIGESTS[0]
    assert Adaptation.of(digest, (), [1, 2]) == Adaptation(digest, 0)
    assert Adaptation.of(digest, (2, 3), [2, 3, 1, 2, 3, 2]) == Adaptation(digest, 3)
    assert Adaptation.of(digest, (2, 3), [3, 2]) == Adaptation.of("", (), [3, 2]) == NOT_ADAPTED
    later = Adaptation(digest, 3)
    assert (later.behind(2), later.behind(9)) == (Adaptation(digest, 1), Adaptation(digest, 0))
    assert (later.within(4), later.within(3)) == (later, NOT_ADAPTED)
