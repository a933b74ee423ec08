# SPDX-License-Identifier: Apache-2.0
"""Weights of less than 16 bits: products equal those of the dequantized numbers and are batch-invariant (C16)."""

from dataclasses import replace

import kernels
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pontil.gpu_ops.kernels.compile.instruction_sets import usable_sets
from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.gpu_ops.kernels.weights.matrix import alternate, pack, stack
from pontil.gpu_ops.kernels.weights.quantized import MOST_WEIGHT, QuantizedWeights, packed_scales, per_channel, stacked
from pontil.gpu_ops.kernels.weights.structures import BYTES, EIGHTS, NIBBLES
from pontil.runtime.loaders.gguf.ggml_levels import LEVELS, STEPS
from pontil.runtime.loaders.gguf.ggml_types import GGML_TYPES

# Numbers from 0 on, or from -128.
RANGES = {"nibbles": (0, 16), "bytes": (0, 64), "signed": (-128, 128)}


@pytest.fixture(scope="module", params=kernels.NAMES)
def library(request: pytest.FixtureRequest) -> KernelLibrary:
    return kernels.opened(request.param)


def random_levels(kind: str, outputs: int, inputs: int, group: int, seed: int = 1) -> QuantizedWeights:
    generator = torch.Generator().manual_seed(seed)
    low, high = RANGES[kind]
    numbers = torch.randint(low, high, (outputs, inputs), generator=generator)
    scales, offsets = torch.randn(2, outputs, inputs // group, generator=generator)
    # float16, as in a file.
    scales, offsets = (scales * 1e-3).half().float(), (offsets * 8e-3).half().float()
    return QuantizedWeights(numbers.to(torch.int8 if low else torch.uint8), scales, offsets)


def by_table(outputs: int, inputs: int, group: int, seed: int = 1) -> QuantizedWeights:
    """The places of numbers in a table of any."""
    places, generator = random_levels("nibbles", outputs, inputs, group, seed), torch.Generator().manual_seed(seed)
    table = torch.randint(-128, 128, (16,), generator=generator).to(torch.int8)
    return replace(places, table=table)


def random_blocks(kind: int, outputs: int, blocks: int, seed: int = 1) -> QuantizedWeights:
    """Weights of random bytes in a ggml type, but for the float16 steps of its blocks."""
    generator = torch.Generator().manual_seed(seed)
    form, at = GGML_TYPES[kind], {12: [0, 2], 14: [208]}[kind]
    stored = torch.randint(0, 256, (outputs * blocks, form.size), dtype=torch.uint8, generator=generator)
    for place in at:
        step = torch.randn(len(stored), 1, generator=generator) * 1e-3
        stored[:, place : place + 2] = step.half().view(torch.uint8)
    parts = [part.reshape(outputs, -1) for part in (*LEVELS[kind](stored), STEPS[kind](stored))]
    weight = QuantizedWeights(*parts)
    assert torch.allclose(weight.dense(), form.read(stored).view(outputs, -1), rtol=1e-6, atol=1e-9)
    return weight


def check(library: KernelLibrary, levels: QuantizedWeights, x: Tensor) -> None:
    matrix = pack(levels, torch.arange(levels.shape[0]).float())
    found = library.linear(matrix, x)
    bias = torch.arange(levels.shape[0]).double()
    expected = x.bfloat16().double() @ levels.dense().double().T + bias
    # The allowed error of the product, and that of rounding its sum with a larger bias to float32.
    allowed = 1e-3 * (x.bfloat16().double().abs() @ levels.dense().double().abs().T) + 2.0**-22 * bias + 1e-9
    assert bool(((found - expected).abs() <= allowed).all())
    for rows in {1, 2, 5, 6, 7, 13, len(x)}:
        assert torch.equal(library.linear(matrix, x[:rows]), found[:rows])
        assert torch.equal(library.linear(matrix, x[-rows:]), found[-rows:])


@settings(deadline=None, max_examples=12)
@given(
    kind=st.sampled_from(sorted(RANGES)), outputs=st.integers(1, 100), groups=st.integers(1, 9),
    group=st.sampled_from([16, 32]), rows=st.integers(1, 40),
)  # fmt: skip
def test_products(library: KernelLibrary, kind: str, outputs: int, groups: int, group: int, rows: int) -> None:
    x = torch.randn(rows, groups * group, generator=torch.Generator().manual_seed(2))
    check(library, random_levels(kind, outputs, groups * group, group), x)


@pytest.mark.parametrize("kind", RANGES)
@pytest.mark.parametrize(("inputs", "group"), [(144, 48), (192, 64), (80, 80), (96, 96), (192, 96), (256, 128)])
def test_products_of_groups_of_any_size(library: KernelLibrary, kind: str, inputs: int, group: int) -> None:
    """Sums are exact for 64 inputs, which may not all have one scale."""
    check(library, random_levels(kind, 40, inputs, group), torch.randn(17, inputs))


def rounded_rows(x: Tensor) -> Tensor:
    """Rows of bfloat16 numbers rounded to whole numbers of 13 bits and a sign, in float64."""
    x = x.bfloat16().double()
    return (x / units_of(x)).round() * units_of(x)


def units_of(x: Tensor) -> Tensor:
    return torch.exp2(torch.floor(torch.log2(x.abs().amax(1, keepdim=True))) - 12)


@settings(deadline=None, max_examples=12)
@given(
    kind=st.sampled_from([12, 14]), outputs=st.integers(1, 100), blocks=st.integers(1, 4), rows=st.integers(1, 40),
)  # fmt: skip
def test_products_with_blocks(library: KernelLibrary, kind: int, outputs: int, blocks: int, rows: int) -> None:
    """The only roundings are those of activations, of the sums of 32 of them that minima take, to eight units, and of
    float32 sums, of which there are few."""
    weight, x = random_blocks(kind, outputs, blocks), torch.randn(rows, 256 * blocks)
    check(library, weight, x)
    found, expected = library.linear(pack(weight), x), rounded_rows(x) @ weight.dense().double().T
    allowed = 2e-6 * (rounded_rows(x).abs() @ weight.dense().double().abs().T)
    if kind == 12:
        allowed += 4 * units_of(x.bfloat16().double()) * weight.offsets.double().abs().sum(1)
    assert bool(((found - expected).abs() <= allowed).all())


@pytest.mark.parametrize("kind", [12, 14])
def test_more_rows_than_share_what_is_unpacked_of_a_block(library: KernelLibrary, kind: int) -> None:
    """Seven are left, which take levels as they are."""
    x = torch.randn(263, 512, generator=torch.Generator().manual_seed(2))
    check(library, random_blocks(kind, 40, 2), x)


@pytest.mark.parametrize("kind", [12, 14])
def test_the_largest_sums_of_blocks_fit_their_words(library: KernelLibrary, kind: int) -> None:
    """Every level, scale and activation the largest that there is, with the same sign: no sum wraps around."""
    weight = random_blocks(kind, 33, 2)
    assert weight.steps is not None
    weight.steps[:] = 1.0
    scale, number, offset = (63.0, 15, -63.0) if kind == 12 else (-128.0, 0, 4096.0)
    weight.scales[:], weight.numbers[:], weight.offsets[:] = scale, number, offset
    x = torch.full((13, 512), 255 / 128)
    x[::2] *= -1
    expected = x.double() @ weight.dense().double().T
    assert torch.allclose(library.linear(pack(weight), x).double(), expected, rtol=1e-6)


def test_blocks_stay_blocks_where_all_parts_are() -> None:
    fours, sixes = random_blocks(12, 32, 1), random_blocks(14, 32, 1)
    assert stacked([fours, fours]).steps is not None and stacked([fours, sixes]).steps is None
    assert torch.equal(stacked([fours, sixes]).dense(), torch.cat([fours.dense(), sixes.dense()]))
    both = alternate(fours, random_blocks(12, 32, 1, seed=5))
    assert isinstance(both, QuantizedWeights) and both.steps is not None
    assert torch.equal(both.dense()[:16], fours.dense()[:16]) and both.steps.shape == (64, 2)


@pytest.mark.parametrize("inputs", [16, 48, 576, 1536])
def test_one_scale_an_output(library: KernelLibrary, inputs: int) -> None:
    weight = torch.randn(70, inputs, generator=torch.Generator().manual_seed(3))
    weight[7] = 0
    levels = per_channel(weight)
    assert float((levels.dense() - weight).abs().max()) <= float(weight.abs().max()) / 254 * 1.001
    check(library, levels, torch.randn(9, inputs, generator=torch.Generator().manual_seed(4)))


def test_parts_of_different_kinds_become_one(library: KernelLibrary) -> None:
    parts = [random_levels(kind, 32, 96, group) for kind, group in (("nibbles", 32), ("signed", 32), ("bytes", 16))]
    both = stacked(parts)
    assert both.group == 16 and torch.equal(both.dense(), torch.cat([part.dense() for part in parts]))
    check(library, both, torch.randn(4, 96))
    mixed = stack(parts[0], torch.ones(3, 96).bfloat16())
    assert isinstance(mixed, Tensor) and mixed.dtype == torch.bfloat16 and mixed.shape == (35, 96)


@pytest.mark.parametrize(("inputs", "group"), [(544, 32), (544, 16), (144, 48), (96, 96), (512, 256)])
def test_a_table_makes_the_bits_of_its_numbers(library: KernelLibrary, inputs: int, group: int) -> None:
    weight = by_table(70, inputs, group)
    plain = QuantizedWeights(weight.levels, weight.scales, weight.offsets)
    assert weight.kind == NIBBLES and plain.kind == BYTES and torch.equal(weight.dense(), plain.dense())
    x = torch.randn(40, inputs, generator=torch.Generator().manual_seed(2))
    check(library, weight, x)
    assert torch.equal(library.linear(pack(weight), x), library.linear(pack(plain), x))


def floats(numbers: Tensor, scales: Tensor) -> QuantizedWeights:
    bits = numbers.to(torch.float8_e4m3fn).view(torch.uint8)
    return QuantizedWeights(bits, scales, torch.zeros_like(scales), floats=True)


@pytest.mark.parametrize(("inputs", "group"), [(544, 32), (256, 128), (144, 48), (96, 96)])
@pytest.mark.parametrize("largest", [448.0, 3.0, 2.0**-6])
def test_floats_of_8_bits_lose_nothing_of_small_ones(
    library: KernelLibrary, inputs: int, group: int, largest: float
) -> None:
    generator = torch.Generator().manual_seed(4)
    numbers = torch.randn(70, inputs, generator=generator).clamp(-3, 3) * largest / 3
    weight = floats(numbers, torch.rand(70, inputs // group, generator=generator) + 0.1)
    assert weight.kind == EIGHTS
    x = torch.randn(40, inputs, generator=generator)
    check(library, weight, x)


def test_every_float_of_8_bits_is_read(library: KernelLibrary) -> None:
    """One at a time, to the 12 bits to which weights are rounded; one that is not a number is none."""
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().nan_to_num(0.0)
    numbers = torch.cat([codes[None], torch.zeros(40, 256)])
    read = library.linear(pack(floats(numbers, torch.ones(41, 2))), torch.eye(256))[:, 0]
    assert (read - codes).abs().max() <= 448 / MOST_WEIGHT
    numbers[7, 9] = torch.nan
    wrong = library.linear(pack(floats(numbers, torch.ones(41, 2))), torch.randn(3, 256)).isnan()
    assert bool(wrong[:, 7].all()) and int(wrong.sum()) == 3


def test_floats_and_whole_numbers_in_one_product_become_floats_of_16_bits() -> None:
    one, whole = floats(torch.randn(32, 64), torch.ones(32, 2)), random_levels("bytes", 32, 64, 32)
    both, mixed = stack(one, one), stack(one, whole)
    assert isinstance(both, QuantizedWeights) and both.kind == EIGHTS
    assert torch.equal(both.dense(), torch.cat([one.dense()] * 2))
    assert isinstance(mixed, Tensor) and mixed.dtype == torch.bfloat16
    assert torch.equal(one.columns(range(16, 48)).dense(), one.dense()[:, 16:48])


def test_a_table_stays_where_all_parts_have_it() -> None:
    first, other = by_table(32, 64, 32), by_table(32, 64, 32, seed=2)
    both, mixed = stacked([first, replace(first, scales=first.scales / 2)]), stacked([first, other])
    assert both.table is not None and both.kind == NIBBLES and mixed.table is None and mixed.kind == BYTES
    assert torch.equal(mixed.dense(), torch.cat([first.dense(), other.dense()]))
    gates = alternate(first, first)
    assert isinstance(gates, QuantizedWeights) and gates.table is not None
    assert torch.equal(first.columns(range(16, 48)).dense(), first.dense()[:, 16:48])
    assert first.columns(range(16, 48)).table is not None


def test_every_instruction_set_has_the_same_bits() -> None:
    """Sums are exact but for additions in float32, which all do in the same order."""
    opened = [kernels.opened(one.name) for one in usable_sets() if "-DPONTIL_TILES" not in one.flags]
    levels = random_levels("bytes", 64, 544, 16), by_table(64, 544, 32)
    for weight in (*levels, random_blocks(12, 64, 3), random_blocks(14, 64, 3)):
        matrix, x = pack(weight), torch.randn(19, weight.shape[1])
        for rows in (1, len(x)):
            found = [one.linear(matrix, x[:rows]) for one in opened]
            assert len(found) > 1 and all(torch.equal(one, found[0]) for one in found)


@pytest.mark.parametrize("spoiled", [float("inf"), float("nan")])
def test_what_is_not_finite_is_not_hidden(library: KernelLibrary, spoiled: float) -> None:
    levels, x = random_levels("nibbles", 32, 64, 32), torch.randn(3, 64)
    x[1, 5] = spoiled
    found = library.linear(pack(levels), x)
    assert not found[1].isfinite().any() and found[[0, 2]].isfinite().all()
    for weight in (levels, random_blocks(12, 32, 1), random_blocks(14, 32, 1)):
        weight.scales[7, 1] = spoiled
        found = library.linear(pack(weight), torch.randn(1, weight.shape[1]))
        assert not found[0, 7].isfinite() and found[0, torch.arange(32) != 7].isfinite().all()


def test_weights_are_exact_to_twelve_bits() -> None:
    """The packed whole numbers, multiplied out, are the weight to a bit and a half of its unit, and fit 12 bits."""
    for kind, high in (("nibbles", 16), ("bytes", 64), ("signed", 128)):
        levels = random_levels(kind, 40, 96, 32)
        packed, units = packed_scales(levels)
        scales, offsets = packed << 16 >> 16, packed >> 16
        numbers = levels.numbers.to(torch.int32).view(40, 3, 32)
        weights = ((numbers * scales[:, :, None] + 64) >> 7) + offsets[:, :, None]
        assert int(weights.abs().max()) < 4096 and int(numbers.max()) < high
        off = weights.view(40, 96) * units[:, None] - levels.dense()
        assert bool((off.abs() <= 1.51 * units[:, None]).all())


def test_levels_alternate_as_numbers_do() -> None:
    gate, up = random_levels("nibbles", 48, 64, 32), random_levels("bytes", 48, 64, 16)
    both = alternate(gate, up)
    expected = alternate(gate.dense(), up.dense())
    assert isinstance(both, QuantizedWeights) and isinstance(expected, Tensor) and torch.equal(both.dense(), expected)
    assert torch.equal(expected[16:32], up.dense()[:16]) and torch.equal(expected[32:48], gate.dense()[16:32])


@pytest.mark.parametrize(
    ("weight", "cut", "kept"),
    [
        (random_levels("nibbles", 5, 96, 32), range(48, 96), 16),
        (random_levels("signed", 5, 96, 16), range(32, 64), 16),
        (per_channel(torch.randn(5, 96, generator=torch.Generator().manual_seed(1))), range(64, 96), 32),
        (random_blocks(12, 3, 4), range(512, 1024), 32),
        (random_blocks(14, 3, 4), range(256, 512), 16),
        (random_blocks(12, 3, 3), range(384, 768), 32),
        (random_blocks(14, 3, 3), range(0, 384), 16),
    ],
)
def test_some_inputs_are_the_same_weights(weight: QuantizedWeights, cut: range, kept: int) -> None:
    part = weight.columns(cut)
    assert torch.equal(part.dense(), weight.dense()[:, cut.start : cut.stop]) and part.group == kept
    whole_blocks = weight.steps is not None and cut.start % 256 == 0 and len(cut) % 256 == 0
    assert (part.steps is not None) == whole_blocks
    # The steps of whole blocks are their own.
    together = pack(part).data, pack(QuantizedWeights(*(one.contiguous() for one in fields_of(part)))).data
    assert torch.equal(*together)


def fields_of(weight: QuantizedWeights) -> list[Tensor]:
    parts = (weight.numbers, weight.scales, weight.offsets, weight.steps)
    return [part for part in parts if part is not None]


@pytest.mark.parametrize(("blocks", "cut"), [(4, range(512, 1024)), (3, range(384, 768))])
@pytest.mark.parametrize("kind", [12, 14])
def test_products_of_some_inputs_add_up(library: KernelLibrary, kind: int, blocks: int, cut: range) -> None:
    weight = random_blocks(kind, 40, blocks)
    x = torch.randn(9, len(cut), generator=torch.Generator().manual_seed(2))
    check(library, weight.columns(cut), x)
