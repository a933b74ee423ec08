# SPDX-License-Identifier: Apache-2.0
"""An element's bits are the same at every position and for every number of threads."""

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from effort import by_default
from hypothesis import given
from hypothesis.strategies import integers
from torch import Tensor

from pontil.gpu_ops.elementwise import GRAIN, UNIT, apply, is_even

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "exp2": torch.exp2,
    "silu": F.silu,
    "gelu": lambda x: F.gelu(x, approximate="tanh"),
}


@pytest.fixture(params=by_default({3, 4}, [1, 2, 3, 4, 5, 7]))
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(1, 80), (3, 80), (33, 1536), (97, 1000), (256, 576)])
def test_bits_do_not_depend_on_place_or_threads(
    threads: int, name: str, dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    """Compare with whole vectors on one thread; also for a half of a wider tensor."""
    function = FUNCTIONS[name]
    wide = torch.randn(shape[0], 2 * shape[1], generator=torch.Generator().manual_seed(0)).mul(4).to(dtype)
    for x in (wide[:, : shape[1]].contiguous(), wide[:, shape[1] :]):
        torch.set_num_threads(1)
        alone = function(F.pad(x.reshape(-1), (0, -x.numel() % UNIT)))[: x.numel()].view(x.shape)
        torch.set_num_threads(threads)
        assert torch.equal(apply(function, x), alone)
        assert torch.equal(apply(function, x[1:]), alone[1:])


@given(threads=integers(1, 256), more=integers(0, 40 * GRAIN))
def test_large_tensors_are_shared_by_all_threads(threads: int, more: int) -> None:
    """A size of at least one grain per thread becomes even by padding: nothing large is computed piece by piece."""
    size = threads * GRAIN + more
    assert is_even(size + -size % (UNIT * threads), threads)


def test_the_cure_is_needed() -> None:
    """The plain functions do differ at the ends of shares on some machines: there this test shows that the tests above
    can fail; elsewhere it is skipped with that reason."""
    x = torch.randn(3 * GRAIN - 37, generator=torch.Generator().manual_seed(1)) * 4
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    differing = sum(int((function(x) != apply(function, x)).sum()) for function in FUNCTIONS.values())
    torch.set_num_threads(before)
    if not differing:
        pytest.skip("this machine's scalar and vector code round alike")
