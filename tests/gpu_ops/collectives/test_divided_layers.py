# SPDX-License-Identifier: Apache-2.0
"""Layers that several processes compute together have the bits of one process (rule H4)."""

from collections.abc import Iterator
from itertools import product

import kernels
import pytest
import rank_calls
import torch
from divided_layer import FIVE_BITS, INT8, NIBBLES, DividedLayer
from effort import by_default
from rank_processes import RankProcesses

from pontil.gpu_ops.kernels.layer import HeadShape
from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.runtime.models.partition import Partition

FLOAT32, BFLOAT16 = torch.float32, torch.bfloat16
LAYERS = {
    "bfloat16": DividedLayer(),
    "float32": DividedLayer(FLOAT32, bias=True),
    # Shares of 16 columns, and of 48.
    "narrow": DividedLayer(BFLOAT16, HeadShape(4, 4, 16), 64, 64, bias=True, head_norms=True),
    "one KV head": DividedLayer(BFLOAT16, HeadShape(4, 1, 64), 192, 256, sandwich=True, head_norms=True, gelu=True),
    "two KV heads": DividedLayer(FLOAT32, HeadShape(8, 2, 16), 192, 64, window=20),
    "int8 keys": DividedLayer(BFLOAT16, HeadShape(8, 4, 32), 128, 192, cells=torch.int8, sandwich=True),
    "fp8 keys": DividedLayer(FLOAT32, HeadShape(4, 2, 32), 128, 192, cells=torch.float8_e4m3fn),
    "int8 weights": DividedLayer(weights=INT8, bias=True),
    "4-bit weights": DividedLayer(weights=NIBBLES, sandwich=True),
    "5-bit weights": DividedLayer(weights=FIVE_BITS),
}


@pytest.fixture(scope="module")
def library() -> Iterator[KernelLibrary]:
    library = kernels.opened()
    yield library
    library.close()


# By default each layer once; four ranks share what has too few KV heads for them.
@pytest.mark.parametrize(
    ("name", "ranks"),
    by_default(
        {(name, 4 if "KV head" in name or name in ("bfloat16", "4-bit weights") else 2) for name in LAYERS},
        product(LAYERS, (2, 4)),
    ),
)
def test_ranks_compute_the_bits_of_one_process(
    processes: RankProcesses, library: KernelLibrary, name: str, ranks: int
) -> None:
    layer = LAYERS[name]
    processes.share(ranks)
    rows, pool = layer.computed(library)
    dim = layer.shape.head_dim
    for rank, answer in enumerate(processes.call(range(ranks), rank_calls.compute, layer)):
        assert isinstance(answer, tuple), answer
        found, part = answer
        assert all(torch.equal(one, other) for one, other in zip(found, rows, strict=True))
        own = Partition(rank, ranks).heads(layer.shape.kv_heads, dim)
        heads = slice(own.start // dim, own.stop // dim)
        assert torch.equal(part.view(torch.uint8), pool[:, :, :, heads].contiguous().view(torch.uint8))


def test_rows_that_do_not_fit_are_refused_on_all_ranks(processes: RankProcesses) -> None:
    processes.share(2, 100 << 10)
    answers = processes.call([0, 1], rank_calls.compute, DividedLayer(prompt=83))
    assert all("too small" in answer for answer in answers), answers
