# SPDX-License-Identifier: Apache-2.0
"""One memory, two views: a peer maps the bytes that the engine writes."""

import mmap
import os
from dataclasses import replace

import pytest
import torch
from staged import MEMORIES, as_bytes, storage_in

from pontil.gpu_ops.kernels.weights.slots import unpacked
from pontil.runtime.cache.layout import KVLayout, choose_kv_dtype
from pontil.runtime.cache.storage import HEADER_BYTES, KVStorage
from pontil.runtime.errors import ModelError

LAYOUT = KVLayout(8, 2, 3, 4, "bfloat16")


def test_a_block_is_one_run_of_bytes_that_another_mapping_sees() -> None:
    storage = KVStorage(LAYOUT, 5, torch.device("cpu"))
    assert not storage.tensor.any()
    storage.tensor[3] = 1.5
    storage.epochs[7] = 42
    fd = os.open(f"/proc/{os.getpid()}/fd/{storage.fd}", os.O_RDONLY)
    seen = mmap.mmap(fd, storage.size, prot=mmap.PROT_READ)
    os.close(fd)
    start = HEADER_BYTES + 3 * LAYOUT.block_bytes
    block = torch.frombuffer(bytearray(seen[start : start + LAYOUT.block_bytes]), dtype=torch.bfloat16)
    assert bool((block == 1.5).all())
    assert int.from_bytes(seen[7 * 8 : 8 * 8], "little") == 42
    assert not any(seen[start + LAYOUT.block_bytes :])
    assert seen[HEADER_BYTES - 16 : HEADER_BYTES] == storage.identity != KVStorage(LAYOUT, 5, storage.device).identity


@pytest.fixture(params=MEMORIES)
def memory(request: pytest.FixtureRequest) -> str:
    """The memory in which the engine computes; every operation has to mean the same in both kinds."""
    return str(request.param)


@pytest.mark.parametrize("blocks", [[], [3], [4, 1, 3], [1, 2, 3, 4]])
@pytest.mark.parametrize("planes", [1, 2])
@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "fp8"])
def test_what_is_staged_is_what_the_engine_wrote_and_what_landed_is_what_it_reads(
    memory: str, blocks: list[int], dtype: str, planes: int
) -> None:
    """An empty list too: a step may finish no block of a prompt."""
    ours, theirs = (storage_in(memory, replace(LAYOUT, dtype=dtype, planes=planes), 5) for _ in range(2))
    ours.tensor.copy_(9 * torch.randn(ours.tensor.shape))
    before = as_bytes(theirs.tensor).clone()
    ours.stage(blocks)
    assert torch.equal(ours.shared[blocks], as_bytes(ours.tensor[blocks]))
    assert ours.digests(blocks) == ours.own_digests(blocks)
    theirs.shared[blocks] = ours.shared[blocks]
    theirs.land(blocks, None, theirs.mark())
    assert torch.equal(as_bytes(theirs.tensor[blocks]), as_bytes(ours.tensor[blocks]))
    assert ours.own_digests(blocks) == theirs.own_digests(blocks) and len(ours.own_digests(blocks)) == len(blocks)
    others = [block for block in range(5) if block not in blocks]
    assert torch.equal(as_bytes(theirs.tensor[others]), before[others])


def test_what_is_not_staged_is_not_shown_where_the_engines_memory_is_its_own() -> None:
    storage = storage_in("staged", LAYOUT, 3)
    storage.tensor[1:] = 1.5
    storage.stage([2])
    assert not storage.shared[1].any() and bool(storage.shared[2].any())
    storage.shared[1] = 7
    assert bool((storage.tensor[1] == 1.5).all())


@pytest.mark.parametrize("planes", [1, 2])
def test_clear_tail_zeroes_only_the_slots_behind_the_filled_ones(memory: str, planes: int) -> None:
    storage = storage_in(memory, replace(LAYOUT, planes=planes), 3)
    storage.tensor[:] = 1
    storage.clear_tail(2, 5)
    assert bool((storage.tensor[2, :, :, :, :5] == 1).all()) and not storage.tensor[2, :, :, :, 5:].any()
    assert bool((storage.tensor[1] == 1).all())


def test_an_impossible_block_size_is_named() -> None:
    with pytest.raises(ModelError, match="--block-size 12"):
        KVLayout(12, 1, 1, 4, "float32")


def test_the_fingerprint_tells_layouts_apart() -> None:
    assert LAYOUT.fingerprint() == KVLayout(8, 2, 3, 4, "bfloat16").fingerprint()
    assert LAYOUT.fingerprint() != KVLayout(16, 2, 3, 4, "bfloat16").fingerprint()
    assert LAYOUT.fingerprint() != KVLayout(8, 2, 3, 4, "bfloat16", packed=True).fingerprint()
    assert len({KVLayout(8, 2, 3, 4, dtype).fingerprint() for dtype in ("bfloat16", "int8", "fp8")}) == 3
    assert LAYOUT.fingerprint() != replace(LAYOUT, planes=1).fingerprint()


def test_layouts_of_keys_and_values_keep_the_fingerprint_that_they_had_before_there_were_others() -> None:
    assert LAYOUT.fingerprint() == "95234fcd2eb3fd04"


def test_a_latent_takes_the_bytes_of_one_head() -> None:
    """DeepSeek V3: 512 numbers and 64 rotated ones for each position and layer."""
    latent = KVLayout(16, 61, 1, 576, "bfloat16", planes=1)
    assert latent.block_bytes == 16 * 61 * 576 * 2 and latent.head_bytes == 16 * 576 * 2
    parts = [replace(latent, rank=rank, ranks=4) for rank in range(4)]
    assert all(part.page_shape == (61, 1, 1, 16, 576) and part.kv_heads == range(1) for part in parts)
    assert {part.fingerprint() for part in parts} == {latent.fingerprint()}


@pytest.mark.parametrize("dtype", ["int8", "fp8"])
def test_cells_of_8_bits_take_half_of_16_and_their_scales(dtype: str) -> None:
    plain, small = KVLayout(16, 30, 3, 64, "bfloat16"), KVLayout(16, 30, 3, 64, dtype)
    assert small.block_bytes * 128 == plain.block_bytes * 68
    storage = KVStorage(small, 3, torch.device("cpu"))
    assert storage.size == HEADER_BYTES + 3 * small.block_bytes and storage.tensor.shape[-1] == 68


def test_a_type_of_the_cache_that_is_not_the_models_is_refused() -> None:
    assert choose_kv_dtype("auto", "bfloat16") == choose_kv_dtype("bfloat16", "bfloat16") == "bfloat16"
    assert choose_kv_dtype("int8", "float16") == "int8" and choose_kv_dtype("fp8", "float32") == "fp8"
    for asked in ("float32", "float16", "int4"):
        with pytest.raises(ModelError, match=f"--kv-cache-dtype {asked} is not possible .* choose auto, int8 or fp8"):
            choose_kv_dtype(asked, "bfloat16")


def test_copies_read_everything_before_they_write(memory: str) -> None:
    """A block that is copied away may be the target of another copy in the same step."""
    storage = storage_in(memory, LAYOUT, 5)
    storage.copy([])
    for block in range(5):
        storage.tensor[block] = block
    storage.copy([(1, 2), (2, 3), (3, 1)])
    assert [int(storage.tensor[block].unique()) for block in range(5)] == [0, 3, 1, 2, 4]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int8", "fp8"])
@pytest.mark.parametrize("block_size", [8, 16, 64])
def test_clear_tail_zeroes_as_many_slots_where_they_are_packed(block_size: int, dtype: str) -> None:
    storage = KVStorage(KVLayout(block_size, 2, 3, 8, dtype, packed=True), 3, torch.device("cpu"))
    for filled in (1, 5, block_size - 1):
        storage.tensor[:] = 1
        storage.clear_tail(2, filled)
        block = unpacked(storage.tensor[2]).float()
        assert bool((block[:, :, :, :filled] == 1).all()) and not block[:, :, :, filled:].any()
        assert bool((storage.tensor[1].float() == 1).all())
