# SPDX-License-Identifier: Apache-2.0
"""The words of an output's whole numbers, and those that share a scale. No torch here: plans count bytes by it."""

from math import gcd

WORDS = 16
"""The number of words of an output is padded to a multiple of this."""
EXACT_WORDS = 32
"""Words of which a kernel adds the products exactly (csrc/quantized.h)."""
INPUTS = 2
"""Inputs of a word of scales, however many bits a number has."""


def padded_words(inputs: int) -> int:
    return inputs // INPUTS + -(inputs // INPUTS) % WORDS


def stated_words(inputs: int, group: int) -> int:
    """Return the words that share a scale in the weight as it is stated: all of them, if all inputs do."""
    return padded_words(inputs) if group == inputs else group // INPUTS


def shared_words(stated: int) -> int:
    """Return the words that share a scale once they are packed: no exact sum begins with one scale and ends with
    another, so that scales are repeated where one would."""
    return stated if stated % EXACT_WORDS == 0 or EXACT_WORDS % stated == 0 else gcd(stated, EXACT_WORDS)


def shared_inputs(inputs: int, group: int) -> int:
    """Return the inputs of an output that share a scale once the weight is packed, of `group` that are stated to."""
    return INPUTS * shared_words(stated_words(inputs, group))
