# SPDX-License-Identifier: Apache-2.0
"""The estimate of what weights take, against what packing them takes, and for a model too large to load here."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import kernels
import packing_memory
import pytest
import torch
from forked_program import run_program
from live_tensors import LiveTensors
from packing_memory import INPUTS, OUTPUTS, levels
from random_gguf import SHAPES, write_random_gguf
from tiny_llama import write_tiny_llama

from pontil.gpu_ops.kernels.weights.matrix import Matrix, pack, stack
from pontil.gpu_ops.kernels.weights.quantized import per_channel
from pontil.gpu_ops.kernels.weights.shared_scales import shared_inputs
from pontil.gpu_ops.products.level_weights import LevelWeights, on_device
from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.checkpoint import open_checkpoint
from pontil.runtime.loaders.config import read_config
from pontil.runtime.loaders.gguf.ggml_levels import LEVELS
from pontil.runtime.loaders.gguf.header import read_header
from pontil.runtime.loaders.gguf.packed_formats import GGUF_FORMATS, TABLES, NumberFormat, stacked
from pontil.runtime.models.families.registry import build_model
from pontil.runtime.models.layers.decoder import Decoder
from pontil.runtime.models.partition import Partition
from pontil.runtime.models.weights import Packing, Weights
from pontil.runtime.probe import footprint as module
from pontil.runtime.probe.footprint import (
    IMPORTED_BYTES,
    SERVING_BYTES,
    MemoryDemand,
    check_memory,
    footprint,
    footprints,
    memory_lines,
    together,
)
from pontil.runtime.probe.host_memory import FreeMemory
from pontil.runtime.probe.packed_share import lack_of_room
from pontil.runtime.probe.weight_memory import (
    PIECE,
    UNPACKED_BYTES,
    Ranks,
    WeightFormats,
    formats_of,
    loaded_products,
    packing,
    weight_memory,
)

GIB = 1 << 30
PAIR = MemoryDemand("auto", "auto", "gguf", None, None, 16, [["cpu"], ["cpu"]], {})
# Of the 8B model.
VOCABULARY, HIDDEN = 128256, 4096


@pytest.fixture
def large(tmp_path: Path) -> Path:
    return write_random_gguf(tmp_path / "8b-q4_k_m.gguf", SHAPES["8b"], has_data=False)


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of 24 GiB on which little else runs."""
    monkeypatch.setattr(module, "host_room", lambda: FreeMemory(23 * GIB))


def packed_bytes(matrix: Matrix) -> int:
    """Return the bytes of a packed weight, but for its outputs' units."""
    return matrix.data.nbytes + (0 if matrix.scales is None else matrix.scales.nbytes)


@pytest.mark.parametrize("kind", LEVELS)
def test_a_type_is_packed_in_as_many_bytes_as_its_format_says(kind: int) -> None:
    assert set(LEVELS) == set(GGUF_FORMATS)
    assert packed_bytes(pack(levels(kind, 64, 512))) == GGUF_FORMATS[kind].size(64 * 512)


@pytest.mark.parametrize("kind", LEVELS)
def test_a_device_has_the_numbers_of_a_type_in_as_many_bytes_as_is_said(kind: int) -> None:
    """And no others, but for the rounding of scales and offsets, to 16 bits of an output's largest one."""
    one = levels(kind, 64, 512)
    stored = on_device(one, torch.device("cpu"))
    assert isinstance(stored, LevelWeights)
    assert stored.tabled == (kind in TABLES) and (not stored.tabled or stored.numbers.dtype == torch.uint8)
    taken = stored.numbers.nbytes + stored.factors.nbytes - (24 if stored.tabled else 8) * 64
    assert taken == GGUF_FORMATS[kind].on_device().size(64 * 512) <= 1.25 * 64 * 512
    wanted, most = one.dense(), one.scales.abs().amax(1) * 128 + one.offsets.abs().amax(1)
    wrong = (stored.dense(torch.float32) - wanted).abs().amax(1) / most
    sane = most < 1e30
    assert sane.any() and float(wrong[sane].max()) <= 1.6e-5


def test_weights_of_several_types_in_one_product_are_as_wide_as_the_widest() -> None:
    q4, q6, whole = GGUF_FORMATS[12], GGUF_FORMATS[14], NumberFormat(16)
    assert stacked([q4, q4]) == q4 and stacked([q4, q4, q6]) == NumberFormat(8, 16) and stacked([q4, whole]) == whole
    parts = [levels(12, 32, 512), levels(12, 32, 512), levels(14, 64, 512)]
    for some in (parts[:2], parts[2:], parts):
        said = stacked([q6 if one.group == 16 else q4 for one in some])
        assert packed_bytes(pack(stack(*some))) == said.size(sum(one.numbers.numel() for one in some))
    assert packed_bytes(pack(per_channel(torch.ones(64, 512)))) == NumberFormat(8, 512).size(64 * 512)


@pytest.mark.parametrize("kind", LEVELS)
@pytest.mark.parametrize("inputs", [512, 384, 336])
def test_some_inputs_of_a_type_are_packed_in_as_many_bytes_as_is_said(kind: int, inputs: int) -> None:
    """With a row-parallel rank a k-quant that is cut within a block is one no longer."""
    form = GGUF_FORMATS[kind].columns(inputs)
    whole = inputs + -inputs % 32
    said = replace(form, group=shared_inputs(inputs, form.group or inputs)).size(64 * whole)
    assert packed_bytes(pack(levels(kind, 64, 1024).columns(range(inputs)))) == said


def test_ranks_that_add_parts_of_sums_have_wider_weights(tmp_path: Path) -> None:
    """An inner size of 35 blocks of Q4_K or Q6_K has no half of whole blocks."""
    shape = replace(SHAPES["8b"], hidden=1536, inner=8960, heads=12, kv_heads=2, layers=8)
    path = write_random_gguf(tmp_path / "q.gguf", shape, has_data=False)
    config = read_config(path)
    divided, exact = (
        weight_memory(path, config, "gguf", 2, Ranks(2, row_parallel)).held for row_parallel in (True, False)
    )
    finer = sum(name.endswith("ffn_down.weight") and one.kind == 14 for name, one in read_header(path).tensors.items())
    half = 1536 * 8960 // 2
    wider = half * (finer * (10 - 6.625) + (8 - finer) * 0.5) / 8
    assert divided - exact == pytest.approx(wider, rel=0.01)


@pytest.mark.long
def test_packing_takes_as_much_more_for_a_while_as_is_said() -> None:
    run = run_program([packing_memory.__file__, "12", "14", "20", "int8"], computing=True)
    assert run.returncode == 0, run.stderr
    shape, count = {"x.weight": (OUTPUTS, INPUTS)}, OUTPUTS * INPUTS
    for kind, taken in json.loads(run.stdout).items():
        plain, is_int8 = NumberFormat(16), kind == "int8"
        form = NumberFormat(8, INPUTS) if is_int8 else GGUF_FORMATS[int(kind)]
        read = WeightFormats(plain, {}, is_int8, None).reading(shape)
        said = packing(form, count, count, INPUTS, 1) + read
        print(f"{kind}: {said >> 20} MiB said, {taken >> 20} MiB taken")
        assert taken <= said * 1.15 and said <= taken * 1.3


def saved_by_blocks(path: Path) -> int:
    """The bytes by which blocks of Q4_K and Q6_K are smaller than the form in which memory was measured: 4.5 bits for
    5, and 6.625 for 10. Values of another type than their layer's queries and keys are no blocks with these."""
    tensors, saved = read_header(path).tensors, 0.0
    for name, tensor in tensors.items():
        layer, _, part = name.rpartition(".attn_")
        mixed = part in ("q.weight", "k.weight", "v.weight") and tensors[f"{layer}.attn_v.weight"].kind == 14
        if len(tensor.shape) > 1 and not mixed:
            saved += math.prod(tensor.shape) * {12: 0.5, 14: 3.375}.get(tensor.kind, 0.0) / 8
    return int(saved)


def test_an_8b_model_takes_what_was_measured(large: Path) -> None:
    """6.9 GB of weights a worker, of a file of 4.6 GiB, while the embedding was 1.05 GB of bfloat16, which now stays in
    its blocks; its head needs 0.7 GB more while it is read and packed. Of one with four of its layers 3.6 GiB were
    measured at worst, with that embedding (docs/measurements-history.md)."""
    unpacked = VOCABULARY * HIDDEN * 2 - VOCABULARY * HIDDEN * 144 // 256
    assert 4.5 * GIB < large.stat().st_size < 4.7 * GIB
    one = footprint(large, read_config(large), PAIR)
    unpacked += saved_by_blocks(large)
    assert one.weights + unpacked == pytest.approx(6.9e9, rel=0.02)
    assert one.process == pytest.approx(0.5 * GIB, rel=0.1)
    assert one.total + unpacked == pytest.approx(6.9e9 + 0.66e9 + 0.36e9 + 0.33e9, rel=0.02)
    short = write_random_gguf(large.parent / "short.gguf", SHAPES["8b"], 4, has_data=False)
    unpacked += saved_by_blocks(short) - saved_by_blocks(large)
    assert footprint(short, read_config(short), PAIR).total + unpacked == pytest.approx(3.6 * GIB, rel=0.1)
    assert short.stat().st_blocks * 512 < 1 << 20


def test_a_pair_of_an_8b_model_fits_24_gib_and_four_workers_do_not(large: Path, free: None) -> None:
    check_memory(large, PAIR)
    with pytest.raises(ModelError) as refused:
        check_memory(large, replace(PAIR, workers=[["cpu"]] * 4))
    sentence = str(refused.value)
    print(sentence)
    assert "4 workers with 4.8 GiB of weights" in sentence and "GiB while it loads) each need 24.3" in sentence
    assert "this machine has 23.0 GiB left: start fewer workers (--role mixed is one that does both)" in sentence
    assert sentence.endswith("choose a smaller model or --quantization")
    with pytest.raises(ModelError, match=r"a worker with .* needs .* or lower --kv-cache-memory or --max-model-len$"):
        check_memory(large, replace(PAIR, workers=[["cpu"]], kv_cache_memory=18 * GIB))


@pytest.fixture
def cached() -> MemoryDemand:
    """A pair that shares packed weights."""
    return replace(PAIR, shares_weights=True)


def room_of(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(module, "host_room", lambda: FreeMemory(size))


def test_packed_weights_count_once_a_host(large: Path, cached: MemoryDemand, monkeypatch: pytest.MonkeyPatch) -> None:
    """Besides, each worker has its process and its KV, and one has the temporaries of packing, before others have
    more than their code."""
    one = footprint(large, read_config(large), cached)
    assert one.shared == one.weights
    needed = one.total + IMPORTED_BYTES
    assert needed == one.weights + one.loading + IMPORTED_BYTES > one.serving + one.mapping.serving
    room_of(monkeypatch, needed)
    check_memory(large, cached)
    room_of(monkeypatch, needed - 1)
    with pytest.raises(ModelError, match="2 workers with 4.8 GiB of weights that all of the host share") as refused:
        check_memory(large, cached)
    assert f"each need {needed / GIB:.1f} GiB" in str(refused.value)
    # With much KV, serving is what takes most.
    much = replace(cached, kv_cache_memory=3 * GIB)
    serving = one.weights + 6 * GIB + one.process + IMPORTED_BYTES + SERVING_BYTES
    room_of(monkeypatch, serving)
    check_memory(large, much)
    room_of(monkeypatch, serving - 1)
    with pytest.raises(ModelError, match="too large"):
        check_memory(large, much)


def test_four_workers_that_share_an_8b_model_fit_where_each_alone_would_not(
    large: Path, cached: MemoryDemand, free: None
) -> None:
    four = [["cpu"]] * 4
    check_memory(large, replace(cached, workers=four))
    lines = memory_lines(large, replace(cached, workers=four))
    assert "4.8 GiB of weights that all of the host share" in lines[0]
    assert lines[1] == "all 4 at once: 6.5 GiB of the 23.0 GiB that this machine has left"
    with pytest.raises(ModelError, match="too large"):
        check_memory(large, replace(cached, workers=four, shares_weights=False))


def test_ranks_share_their_part_with_the_same_rank_of_other_workers(large: Path, cached: MemoryDemand) -> None:
    held = footprints(large, replace(cached, workers=[["cpu", "cpu"], ["cpu", "cpu"], ["cpu"]]))["cpu"]
    parts = [one.part for one in held if not isinstance(one.part, str)]
    assert [(layout.size, rank) for layout, rank in parts] == [(2, 0), (2, 1), (2, 0), (2, 1), (1, 0)]
    half, whole = held[0], held[-1]
    alone = 2 * (half.weights + half.loading) + whole.weights + whole.loading
    assert together(held) == alone + 2 * IMPORTED_BYTES


def test_a_draft_is_shared_by_those_that_guess(large: Path, cached: MemoryDemand) -> None:
    short = write_random_gguf(large.parent / "short.gguf", SHAPES["8b"], 4, has_data=False)
    guessing = replace(cached, workers=[["cpu"]] * 3, drafting=[False, True, True])
    plain, *drafting = footprints(large, guessing, short)["cpu"]
    assert drafting[0] == drafting[1] and drafting[0].shared == drafting[0].weights > plain.shared
    assert together([plain, *drafting]) == drafting[0].total + 2 * IMPORTED_BYTES
    assert together([plain, *drafting]) == together([*drafting, plain])


@pytest.mark.parametrize(
    ("changes", "shared"),
    [
        ({}, True),
        ({"quantization": "none"}, True),
        ({"quantization": "none", "has_kernels": False}, False),
        ({"shares_weights": False}, False),
    ],
)
def test_weights_are_shared_where_kernels_compute_them(
    large: Path, cached: MemoryDemand, changes: dict[str, object], shared: bool
) -> None:
    one = footprint(large, read_config(large), replace(cached, **changes))  # type: ignore[arg-type]
    assert bool(one.shared) is shared


def test_a_file_leaves_room_on_its_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 5 * GIB
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2 * size + GIB))
    assert lack_of_room(tmp_path / "a" / "b", size) is None
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2 * size + GIB - 1))
    assert "left, which is too little" in str(lack_of_room(tmp_path / "a" / "b", size))
    (tmp_path / "file").write_text("no folder")
    assert lack_of_room(tmp_path / "file" / "b", size) == f"{tmp_path / 'file'} cannot be written"


def test_small_models_share_nothing(tmp_path: Path, cached: MemoryDemand) -> None:
    config = write_tiny_llama(tmp_path / "tiny")
    assert footprint(tmp_path / "tiny", config, replace(cached, quantization="none")).shared == 0


def test_what_does_not_help_is_not_advised(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "host_room", lambda: FreeMemory(6 * GIB))
    with pytest.raises(ModelError) as refused:
        check_memory(large, PAIR)
    assert "start fewer workers" not in str(refused.value) and "--kv-cache-memory" not in str(refused.value)


def test_small_models_start_where_they_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tiny_llama(tmp_path / "tiny")
    for room, workers in ((2, 4), (24, 16)):
        monkeypatch.setattr(module, "host_room", lambda room=room: FreeMemory(room * GIB))
        check_memory(tmp_path / "tiny", replace(PAIR, quantization="none", workers=[["cpu"]] * workers))


def test_the_lines_of_a_plan_have_the_same_figures(large: Path, tmp_path: Path, free: None) -> None:
    (line,) = memory_lines(large, replace(PAIR, workers=[["cpu"]]))
    one = footprint(large, read_config(large), PAIR)
    assert line == f"each worker: {one.words}, or more; up to 128 MiB of KV cache while there is plenty"
    with pytest.raises(ModelError, match="too large"):
        memory_lines(large, replace(PAIR, workers=[["cpu"]] * 4))
    write_tiny_llama(tmp_path / "tiny")
    tiny = memory_lines(tmp_path / "tiny", replace(PAIR, quantization="none", kv_cache_memory=1 << 20))
    assert tiny[0].endswith("MiB of the process, or more")
    assert tiny[1] == "all 2 at once: 451 MiB of the 23.0 GiB that this machine has left"


def test_a_folder_has_no_gguf_types(tmp_path: Path) -> None:
    config = write_tiny_llama(tmp_path / "tiny")
    with pytest.raises(
        ModelError, match="--quantization gguf needs a GGUF file, or a directory with .*: use int8, or leave it out"
    ):
        weight_memory(tmp_path / "tiny", config, "gguf", 2)


@pytest.mark.parametrize("tied", [False, True])
def test_a_tied_head_is_a_copy_where_it_is_packed(tmp_path: Path, tied: bool) -> None:
    config = write_tiny_llama(tmp_path / "tiny", tie_word_embeddings=tied)
    embedding = 4 * config.vocab_size * config.hidden_size
    on_host, on_device = (
        weight_memory(tmp_path / "tiny", config, "none", 4, on_host=host).held for host in (True, False)
    )
    assert on_host - on_device == (embedding if tied else 0)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_a_tied_head_is_not_read_again(tmp_path: Path, quantization: str, ranks: int) -> None:
    """One rank makes it of the embedding, which is counted; one of several copies its part first."""
    path = tmp_path / "tiny"
    config = write_tiny_llama(path, tie_word_embeddings=True, vocab_size=16 * PIECE, dtype="bfloat16")
    library, is_int8 = kernels.opened(), quantization == "int8"
    tensors = open_checkpoint(path).tensors(torch.bfloat16)
    weights = Weights(tensors, torch.device("cpu"), torch.bfloat16, Packing(library, is_int8))
    model = build_model(config, weights)
    assert isinstance(model, Decoder)
    weights.partition = Partition(0, ranks)
    with LiveTensors() as live:
        model.head_weight(weights)
    *_, head = loaded_products(config, formats_of(path, config, quantization, 2), Ranks(ranks), on_host=True)
    pieces = UNPACKED_BYTES * PIECE * config.hidden_size if is_int8 else 0
    assert head.packing - head.held - pieces <= live.peak <= head.packing
