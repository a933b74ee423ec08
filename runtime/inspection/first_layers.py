# SPDX-License-Identifier: Apache-2.0
"""The choice of the first layers of a model by which the speed of the whole is measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pontil.runtime.models.config import ModelConfig, RecurrentConfig

# Bytes that the layers between two measured numbers of them read in a step: more than what a few cores' caches hold.
LEAST_READ = 64 << 20


def measured_layers(config: ModelConfig, read: float) -> tuple[int, ...]:
    """Return the numbers of first layers that are measured: two, between which each kind of layer is as often as in the
    rest of the model, or all of them. A layer reads about so many bytes in a step of one row."""
    before, period = regular(kinds(config))
    least = before + period
    times = max(1, -(-LEAST_READ // max(1, int(read * period))))
    most = least + times * period
    return (config.num_layers,) if most >= config.num_layers else (least, most)


def kinds(config: ModelConfig) -> list[tuple[object, ...]]:
    """Return what each layer is: those that are equal take equally long."""
    return [(config.is_recurrent(n), config.window(n), config.is_sparse(n)) for n in range(config.num_layers)]


def regular(sequence: Sequence[object]) -> tuple[int, int]:
    """Return the number of items before a sequence repeats itself to its end, and the length of what it repeats, which
    together are as few as possible."""
    size = len(sequence)
    found = (
        (before, period)
        for together in range(1, size + 1)
        for before, period in ((together - period, period) for period in range(1, together + 1))
        if all(sequence[place] == sequence[place + period] for place in range(before, size - period))
    )
    return next(found, (0, 1))


def shortened_to(config: ModelConfig, count: int) -> ModelConfig:
    """Return the configuration with so many layers."""
    mixer, experts = config.mixer, config.experts
    if isinstance(mixer, RecurrentConfig):
        mixer = replace(mixer, layers=tuple(layer for layer in mixer.layers if layer < count))
    if experts is not None:
        experts = replace(experts, dense_layers=tuple(layer for layer in experts.dense_layers if layer < count))
    return replace(config, num_layers=count, windows=config.windows[:count], mixer=mixer, experts=experts)
