# SPDX-License-Identifier: Apache-2.0
"""The speed of a whole model from its first layers: which are measured, and what they say of all."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_gguf import write_tiny_gguf
from tiny_hybrid import write_tiny_hybrid
from tiny_latent import write_tiny_deepseek
from tiny_llama import write_tiny_llama

from pontil.runtime.errors import ModelError
from pontil.runtime.inspection import step_speeds
from pontil.runtime.inspection.capacity import capacity
from pontil.runtime.inspection.first_layers import (
    LEAST_READ,
    kinds,
    measured_layers,
    regular,
    shortened_to,
)
from pontil.runtime.inspection.step_speeds import measure_speeds, of_all
from pontil.runtime.loaders.checkpoint import open_checkpoint
from pontil.runtime.loaders.facts.layout import tensor_shapes
from pontil.runtime.models.config import ExpertConfig, ModelConfig
from pontil.runtime.probe.footprint import MemoryDemand

DEMAND = MemoryDemand("auto", "auto", "auto", None, 8 << 20, 16, [["cpu"]], {}, has_kernels=False)


@given(st.lists(st.integers(0, 2), max_size=3), st.lists(st.integers(0, 2), min_size=1, max_size=4), st.integers(2, 5))
def test_what_repeats_is_found(first: list[int], repeated: list[int], times: int) -> None:
    sequence = first + repeated * times
    before, period = regular(sequence)
    assert before + period <= len(first) + len(repeated)
    assert all(one == other for one, other in zip(sequence[before:], sequence[before + period :], strict=False))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    return write_tiny_llama(tmp_path_factory.mktemp("plain"))


def test_a_model_of_equal_layers_is_told_by_two_numbers_of_them(plain: ModelConfig) -> None:
    config = replace(plain, num_layers=80, windows=())
    assert measured_layers(config, LEAST_READ) == (1, 2)
    assert measured_layers(config, LEAST_READ / 8) == (1, 9)
    # So few bytes that all layers are measured.
    assert measured_layers(config, LEAST_READ / 100) == (80,)


def test_each_kind_of_layer_is_as_often_between_them_as_behind(plain: ModelConfig) -> None:
    windows = (64, 64, None) * 20
    experts = ExpertConfig(count=8, per_token=2, intermediate_size=32, normalize=True, dense_layers=(0,))
    config = replace(plain, num_layers=60, windows=windows, experts=experts)
    least, most = measured_layers(config, LEAST_READ)
    between, behind = kinds(config)[least:most], kinds(config)[most:]
    assert {one: between.count(one) / len(between) for one in between} == pytest.approx(
        {one: behind.count(one) / len(behind) for one in behind}, abs=0.02
    )
    # The first layer, which is like no other one, is in both.
    assert kinds(shortened_to(config, least)) == kinds(config)[:least]


def test_times_of_layers_add_up() -> None:
    assert of_all((4,), 4, [3.0]) == 3.0
    # Two for what is around the layers, and one for each of them.
    assert of_all((2, 5), 30, [4.0, 7.0]) == 32.0
    # Others' work in the first ones makes no layer faster than nothing.
    assert of_all((2, 5), 30, [8.0, 7.0]) == 7.0


@pytest.mark.parametrize("kind", ["directory", "gguf", "latent", "hybrid"])
def test_first_layers_are_a_model(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m"
    if kind == "hybrid":
        write_tiny_hybrid(path)
    elif kind == "latent":
        write_tiny_deepseek(path, num_hidden_layers=3, first_k_dense_replace=1)
    else:
        config = write_tiny_llama(path, num_layers=3)
    if kind == "gguf":
        path = write_tiny_gguf(tmp_path / "m.gguf", path, config)
    checkpoint = open_checkpoint(path)
    layers = checkpoint.config.num_layers
    counts = (layers - 1, layers)
    few = checkpoint.narrowed(shortened_to(checkpoint.config, counts[0]))
    assert set(few.places) == set(tensor_shapes(few.config)) & set(checkpoint.places)
    assert 0 < len(few.places) < len(checkpoint.places)
    monkeypatch.setattr(step_speeds, "measured_layers", lambda *facts: counts)
    taken = capacity(path, checkpoint.config, DEMAND, False)
    speeds = measure_speeds(checkpoint, taken, taken.dtype, [0], tmp_path, False)
    assert speeds.step > 0 and speeds.prompt > 0 and (speeds.layers, speeds.cores) == (layers, 1)


def test_layers_that_do_not_fit_are_not_tried(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    taken = replace(capacity(tmp_path, checkpoint.config, DEMAND, False), weights=1 << 60)
    with pytest.raises(ModelError, match="its first layers would take"):
        measure_speeds(checkpoint, taken, taken.dtype, [0], tmp_path, False)


def test_every_hybrid_has_attention_in_its_first_layers(tmp_path: Path) -> None:
    config = write_tiny_hybrid(tmp_path)
    for count, read in product((4, 8, 16), (1, LEAST_READ)):
        recurrent = tuple(layer for layer in range(count) if layer % 4 != 3)
        assert config.recurrent is not None
        longer = replace(config, num_layers=count, mixer=replace(config.recurrent, layers=recurrent))
        assert all(shortened_to(longer, few).kv_layers > 0 for few in measured_layers(longer, read))
