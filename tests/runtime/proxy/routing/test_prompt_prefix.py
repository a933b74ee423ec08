# SPDX-License-Identifier: Apache-2.0
"""The proxy's knowledge of workers' caches, and how it finds a prompt there."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pontil.runtime.cache.prefix import chain, full_keys, root_key
from pontil.runtime.errors import MalformedFrame
from pontil.runtime.proxy.routing.held_prefixes import ASK_AGAIN, MOST_READ, HeldPrefixes, short_key, short_keys
from pontil.runtime.proxy.routing.prompt_prefix import PORTION, PromptPrefix
from pontil.runtime.wire.messages import PrefixDelta


def delta(number: int, added: bytes = b"", removed: bytes = b"") -> PrefixDelta:
    return PrefixDelta("w", "p", number, added, removed)


def packed(*keys: int) -> bytes:
    return struct.pack(f"<{len(keys)}Q", *keys)


def cache_of(prompt: list[int], blocks: int, salt: str = "", tail: bool = False) -> HeldPrefixes:
    """Return a cache with the first blocks of a prompt."""
    cache = HeldPrefixes()
    keys = list(full_keys(prompt, salt, 16))[:blocks]
    if tail:
        keys.append(chain(keys[-1] if keys else root_key(salt), prompt[len(keys) * 16 :]))
    assert cache.take(delta(0, b"".join(key[:8] for key in keys)))
    return cache


def grown(prompt: list[int], *caches: HeldPrefixes, salt: str = "") -> PromptPrefix:
    prefix = PromptPrefix(prompt, salt, 16)
    while prefix.grow(caches):
        pass
    return prefix


def test_changes_are_taken_in_order() -> None:
    cache = HeldPrefixes()
    assert cache.take(delta(0, packed(1, 2, 3))) and cache.take(delta(1, packed(4), packed(2, 9)))
    assert list(cache.keys) == [1, 3, 4]
    assert cache.take(delta(0, packed(7))) and list(cache.keys) == [7], "everything told before is void"


def test_after_a_gap_nothing_is_known_until_the_worker_begins_again() -> None:
    cache = HeldPrefixes()
    assert not cache.take(delta(1, packed(1))) and not len(cache)
    assert cache.take(delta(0, packed(1)))
    assert not cache.take(delta(2, packed(2))) and not len(cache)
    assert not cache.take(delta(1, packed(3))) and not cache.take(delta(3)) and not len(cache)
    assert cache.may_ask(10.0) and not cache.may_ask(10.0 + ASK_AGAIN) and cache.may_ask(10.1 + ASK_AGAIN)
    assert cache.take(delta(0)) and cache.take(delta(1, packed(5))) and list(cache.keys) == [5]
    assert cache.may_ask(10.2 + ASK_AGAIN), "a later gap is another one"


@pytest.mark.parametrize("data", [b"1", b"123456789", bytes(8 * (MOST_READ + 1))])
def test_what_is_no_keys_is_refused_and_is_a_gap(data: bytes) -> None:
    for message in (delta(1, data), delta(1, packed(3), data)):
        cache = HeldPrefixes()
        assert cache.take(delta(0, packed(1)))
        with pytest.raises(MalformedFrame, match="are no keys of 8 bytes"):
            cache.take(message)
        assert not len(cache) and not cache.take(delta(1))


def test_what_is_known_is_bounded() -> None:
    cache = HeldPrefixes(most=3)
    assert cache.take(delta(0, packed(1, 2))) and cache.take(delta(1, packed(3, 4, 5)))
    assert list(cache.keys) == [3, 4, 5], "the oldest are forgotten"


def test_a_short_key_is_what_a_worker_tells() -> None:
    (key,) = full_keys(list(range(16)), "", 16)
    assert short_keys(key[:8]) == (short_key(key),)


@given(length=st.integers(1, 200), blocks=st.integers(0, 13), more=st.integers(0, 13))
def test_the_longest_prefix_is_found(length: int, blocks: int, more: int) -> None:
    prompt = list(range(length))
    one, other = cache_of(prompt, blocks), cache_of(prompt, more)
    prefix = grown(prompt, one, other)
    full = length // 16
    assert prefix.found(one) == min(16 * min(blocks, full), length - 1)
    assert prefix.found(other) == min(16 * min(more, full), length - 1)


def test_the_unfilled_block_is_found_too() -> None:
    prompt = list(range(40))
    whole = cache_of(prompt, 2, tail=True)
    assert grown(prompt, whole).found(whole) == 39, "the last token is always computed"
    assert grown(prompt[:38], whole).found(whole) == 32
    short = cache_of([5, 6], 0, tail=True)
    assert grown([5, 6], short).found(short) == 1


def test_another_salt_finds_nothing() -> None:
    prompt = list(range(64))
    cache = cache_of(prompt, 4, salt="alice")
    assert grown(prompt, cache, salt="alice").found(cache) == 63 and grown(prompt, cache, salt="bob").found(cache) == 0


def test_no_more_keys_are_computed_than_are_found() -> None:
    """A prompt that nobody knows costs one key, however long it is; a known one costs at most a portion at once."""
    prompt = list(range(16 * 3 * PORTION))
    stranger, empty, known = cache_of([1] * 16, 1), HeldPrefixes(), cache_of(prompt, 3 * PORTION)
    cold = PromptPrefix(prompt, "", 16)
    assert not cold.grow([empty]) and not cold.keys and not cold.grow([stranger]) and len(cold.keys) == 1
    warm, turns = PromptPrefix(prompt, "", 16), 1
    while warm.grow([stranger, known]):
        assert len(warm.keys) <= PORTION * turns
        turns += 1
    assert turns > 2 and warm.found(known) == len(prompt) - 1 and warm.found(stranger) == 0


def test_what_is_cached_later_is_found_later() -> None:
    prompt = list(range(160))
    cache = cache_of(prompt, 2)
    prefix = grown(prompt, cache)
    assert prefix.found(cache) == 32
    more = cache_of(prompt, 10)
    while prefix.grow([more]):
        pass
    assert prefix.found(more) == 159


@given(st.lists(st.integers(0, 6), min_size=1, max_size=12), st.booleans())
def test_workers_are_looked_at_together_as_each_alone(held: list[int], tail: bool) -> None:
    prompt = [*range(90)]
    caches = [cache_of(prompt, blocks) if blocks else HeldPrefixes() for blocks in held]
    if tail:
        caches.append(cache_of(prompt, 5, tail=True))
    prefix = grown(prompt, *caches)
    assert prefix.found_in(caches) == [prefix.found(cache) for cache in caches]
    assert prefix.found_in(caches)[: len(held)] == [min(5, blocks) * 16 for blocks in held]


def test_ends_of_other_texts_are_found_where_blocks_have_states() -> None:
    """At their very position, and never so far that no token is left to compute."""
    text = [*range(700)]
    keys = list(full_keys(text, "s", 256))
    ends = {length: short_key(chain(keys[1], text[512:length])) for length in (540, 600, 699)}
    whole = {short_key(key) for key in keys}
    cases = ((540, 600), 600), ((540,), 540), ((), 512), ((540, 600, 699), 699)
    for known, found in cases:
        cache = HeldPrefixes()
        cache.keys = dict.fromkeys([*whole, *(ends[length] for length in known)])
        prefix = PromptPrefix([*text, 5], "s", 256)
        while prefix.grow([cache]):
            pass
        assert prefix.found(cache) == found
        shorter = PromptPrefix(text[:512], "s", 256)
        while shorter.grow([cache]):
            pass
        assert shorter.found(cache) == 256
