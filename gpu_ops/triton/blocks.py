# SPDX-License-Identifier: Apache-2.0
"""Copies and digests of blocks of KV, which are read as integers: nothing is rounded."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pontil.gpu_ops.triton.launch import ceil_div, launch, power_of_2

# Words that a program copies, and rows of words that one digests.
WORDS, ROWS = 2048, 8
WORD_TYPES = (torch.int64, torch.int32, torch.int16, torch.uint8)


@triton.jit
def copy_kernel(
    source, target, sources, targets, source_block, target_block, source_run, target_run, size,
    PICKED: tl.constexpr, PLACED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    number, run = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    here, there = number, number
    if PICKED:
        here = tl.load(sources + number).to(tl.int64)
    if PLACED:
        there = tl.load(targets + number).to(tl.int64)
    word = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    inside = word < size
    words = tl.load(source + here * source_block + run * source_run + word, mask=inside)
    tl.store(target + there * target_block + run * target_run + word, words, mask=inside)


@triton.jit
def digest_kernel(
    pool, blocks, weights, out, block_stride, run_stride, rows, parts,
    SIZE: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    number, run, part = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64), tl.program_id(2)
    row, word = part * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS), tl.arange(0, BLOCK_SIZE)
    inside = (row < rows)[:, None] & (word < SIZE)[None, :]
    start = pool + tl.load(blocks + number).to(tl.int64) * block_stride + run * run_stride
    sums = tl.sum(tl.load(start + row[:, None] * SIZE + word[None, :], mask=inside, other=0), 1)
    by_row = tl.load(weights + run * rows + row, mask=row < rows, other=0)
    tl.store(out + (number * tl.num_programs(1) + run) * parts + part, tl.sum(sums * by_row, 0))


def as_words(blocks: Tensor, word: torch.dtype) -> tuple[Tensor, int, int, int]:
    """Blocks [blocks, ...] as words, then the number of runs of neighbouring words of each, their size, and words from
    one run to the next."""
    words = blocks.view(word)
    run, axis = 1, words.ndim
    while axis > 1 and (words.shape[axis - 1] == 1 or words.stride(axis - 1) == run):
        axis -= 1
        run *= words.shape[axis]
    runs, step = 1, 0
    for dimension in reversed(range(1, axis)):
        step = step or words.stride(dimension)
        assert words.stride(dimension) == runs * step, "the runs of a block are not evenly apart"
        runs *= words.shape[dimension]
    return words, runs, run, step


def largest_word(*pools: Tensor) -> torch.dtype:
    """The largest word of which rows, steps and the beginning of every pool are multiples."""
    lengths = [
        number * pool.element_size()
        for pool in pools
        for number in (pool.shape[-1], pool.storage_offset(), *pool.stride()[:-1])
    ]
    return next(word for word in WORD_TYPES if all(length % word.itemsize == 0 for length in lengths))


def copy_blocks(source: Tensor, sources: Tensor | None, target: Tensor, targets: Tensor | None, count: int) -> None:
    """Copy `count` blocks: number i of the source [blocks, ...], or number sources[i], to number i of the target, or
    number targets[i]. No target may be a source, too."""
    assert source.shape[1:] == target.shape[1:] and source.dtype == target.dtype
    if not count:
        return
    word = largest_word(source, target)
    (from_words, runs, size, step), (to_words, *shape, other_step) = as_words(source, word), as_words(target, word)
    if shape != [runs, size]:
        # One of them has gaps where the other has none: in the runs of the former both are evenly apart.
        small = min(size, shape[1])
        runs, step, other_step = (
            runs * size // small,
            small if size > small else step,
            small if shape[1] > small else other_step,
        )
        size = small
    launch(
        copy_kernel, (count, runs, ceil_div(size, WORDS)), from_words, to_words,
        from_words if sources is None else sources, from_words if targets is None else targets,
        from_words.stride(0), to_words.stride(0), step, other_step, size,
        PICKED=sources is not None, PLACED=targets is not None, BLOCK=WORDS, num_warps=4,
    )  # fmt: skip


def block_digests(pool: Tensor, blocks: Tensor, weights: Tensor) -> Tensor:
    """The weighted sums of the words of some blocks of the pool [blocks, ...], modulo 2^64, int64 [len(blocks)].
    weights int64 [rows]."""
    words, runs, size, step = as_words(pool, torch.int64)
    row = runs * size // len(weights)
    assert size % row == 0, "a row of a digest would span two runs"
    rows = size // row
    parts = ceil_div(rows, ROWS)
    out = torch.zeros(len(blocks), runs, parts, dtype=torch.int64, device=pool.device)
    if len(blocks):
        launch(
            digest_kernel, (len(blocks), runs, parts), words, blocks, weights, out, words.stride(0), step, rows, parts,
            SIZE=row, BLOCK_ROWS=ROWS, BLOCK_SIZE=power_of_2(row), num_warps=4,
        )  # fmt: skip
    return out.flatten(1).sum(1)
