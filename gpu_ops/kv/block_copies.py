# SPDX-License-Identifier: Apache-2.0
"""Copies of blocks between pools and packed buffers."""

from torch import Tensor


def copy_blocks(source: Tensor, sources: Tensor | None, target: Tensor, targets: Tensor | None, count: int) -> None:
    """Copy `count` blocks: number i of the source [blocks, ...], or number sources[i], to number i of the target, or
    number targets[i]. No target may be a source, too.

    Either may be a pool or a packed buffer, whole or some of its heads, on one device; the blocks of both have the same
    shape and type, and their last axis is contiguous.
    """
    if source.device.type != "cpu":
        from pontil.gpu_ops.triton import blocks

        return blocks.copy_blocks(source, sources, target, targets, count)
    read = source[:count] if sources is None else source[sources]
    if targets is None:
        target[:count] = read
    else:
        target[targets] = read
