# SPDX-License-Identifier: Apache-2.0
"""The names of recordings and images in the keys of prompts."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pontil.runtime.cache.prefix import OTHER_THAN_ID, chain, encoded, end_keys
from pontil.runtime.engine.sequences.prompt_keys import PromptKeys, SaltedPrefix
from pontil.runtime.errors import RequestError
from pontil.runtime.proxy.routing.held_prefixes import HeldPrefixes, short_key
from pontil.runtime.proxy.routing.prompt_prefix import PromptPrefix
from pontil.runtime.stages.graph.medium import ENCODER, IMAGE, MEDIA, NAMES, SOUND, Medium, contents_of
from pontil.runtime.stages.media.reader import PromptMedia

SIZE = 4
MARKS = {SOUND: 1, IMAGE: 2}
SEER = ["fingerprint", "float32", "kernels"]
# A text of so many ids, or a picture with this number.
PARTS = st.lists(st.one_of(st.lists(st.integers(3, 5), min_size=1, max_size=6), st.integers(0, 2)), min_size=1)
# As a named medium begins, and ids that look like parts of a name.
CONTENTS = st.lists(st.sampled_from([0, 1, 2, 1 << 62, OTHER_THAN_ID, OTHER_THAN_ID + 1]), max_size=9)


def shown(parts: Sequence[list[int] | int], encoder: list[str] | None = SEER) -> tuple[list[int], dict[str, Any]]:
    """Return a prompt of texts and pictures, all of which have as many rows, and what a run is told of these."""
    prompt, pictures = list[int](), list[str]()
    for part in parts:
        if isinstance(part, int):
            pictures.append(f"{part:032x}")
            prompt += [7, *[MARKS[IMAGE]] * 6, 8]
        else:
            prompt += part
    media = tuple(Medium(IMAGE, 6, 3, 2, 3) for _ in pictures)
    return prompt, PromptMedia(media, b"", MARKS, tuple(pictures)).options(prompt) | {ENCODER: encoder}


def keys_of(prompt: list[int], contents: list[int] | None) -> PromptKeys:
    return SaltedPrefix("salt", contents=contents).keys_of(prompt, SIZE)


def first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@given(PARTS, PARTS)
def test_keys_are_equal_up_to_the_first_other_picture_or_id(
    one: list[list[int] | int], other: list[list[int] | int]
) -> None:
    """Another picture of as many tokens has none of the keys of its block, nor of any behind it."""
    keys, seen = list[PromptKeys](), list[list[int]]()
    for parts in (one, other):
        prompt, options = shown(parts)
        contents = contents_of(prompt, options)
        assert contents is not None and len(contents) == len(prompt)
        pieces = [[7, 9 + part, *[2] * 5, 8] if isinstance(part, int) else part for part in parts]
        seen.append([token for piece in pieces for token in piece])
        keys.append(keys_of(prompt, contents))
    same = first_difference(*seen) if seen[0] != seen[1] else len(seen[0])
    common = sum(a == b for a, b in zip(keys[0].all[: keys[0].full], keys[1].all[: keys[1].full], strict=False))
    assert common == same // SIZE
    assert set(keys[0].all[common:]).isdisjoint(keys[1].all[common:]) or seen[0] == seen[1]


@given(PARTS)
def test_the_proxy_looks_for_the_keys_that_workers_have(parts: list[list[int] | int]) -> None:
    prompt, options = shown(parts)
    contents = contents_of(prompt, options)
    assert contents is not None
    cache = HeldPrefixes()
    cache.keys |= dict.fromkeys(map(short_key, keys_of(prompt, contents).all))
    found = PromptPrefix(contents, "salt", SIZE)
    while found.grow([cache]):
        pass
    assert found.found(cache) == len(prompt) - 1


@given(CONTENTS, CONTENTS)
def test_contents_have_bytes_and_ends_of_their_own(one: list[int], other: list[int]) -> None:
    assert (encoded(one) == encoded(other)) == (one == other)
    assert end_keys(b"parent", one) == [chain(b"parent", one[:count]) for count in range(1, len(one) + 1)]


def test_another_encoder_gives_another_name() -> None:
    prompt, options = shown([[3, 3], 1])
    names = [contents_of(prompt, options | {ENCODER: encoder}) for encoder in (SEER, ["other", *SEER[1:]])]
    assert names[0] != names[1] and names[0] == contents_of(prompt, options)


@pytest.mark.parametrize("missing", [NAMES, ENCODER])
def test_media_that_nobody_names_have_no_keys(missing: str) -> None:
    """A proxy of an earlier version tells of none, and encoders of two releases are not told."""
    prompt, options = shown([[3, 3], 1])
    assert contents_of(prompt, {**options, missing: None}) is None
    assert contents_of(prompt, {MEDIA: []}) is prompt


def test_a_prompt_that_was_cut_has_no_names() -> None:
    prompt, options = shown([[3, 3], 1])
    media = PromptMedia((Medium(IMAGE, 6, 3, 2, 3),), b"", MARKS, ("00" * 16,))
    assert NAMES in options and NAMES not in media.options(prompt[:2])


@pytest.mark.parametrize(
    "names", [5, [], [[3]], [[99, "00"]], [[-1, "00"]], [["3", "00"]], [[3, "0g"]], [[3, 5]], [[1.5, "00"]]]
)
def test_names_that_no_proxy_wrote_are_refused(names: object) -> None:
    prompt, options = shown([[3, 3], 1])
    with pytest.raises(RequestError, match="malformed"):
        contents_of(prompt, options | {NAMES: names})
    with pytest.raises(RequestError, match="malformed"):
        contents_of(prompt, options | {ENCODER: 5})
