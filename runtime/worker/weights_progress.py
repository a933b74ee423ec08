# SPDX-License-Identifier: Apache-2.0
"""How far the reading of a checkpoint has come, told while it is read."""

from collections.abc import Callable, Iterable, Iterator

from torch import Tensor

# Told at most so often: each time that so many more percent were read.
STEP = 5
# A weight that is stored as levels comes in these parts, under its own name.
PARTS = (".numbers", ".scales", ".offsets")


def told(
    tensors: Iterable[tuple[str, Tensor]], total: int, tell: Callable[[str], None]
) -> Iterator[tuple[str, Tensor]]:
    """The same tensors; `total` is how many weights they are."""
    read, before = set[str](), -STEP
    for name, tensor in tensors:
        yield name, tensor
        read.add(whole_name(name))
        percent = 100 * len(read) // max(1, total)
        if percent >= before + STEP or (percent == 100 and before < 100):
            before = percent
            tell(f"reading weights, {percent} %")


def whole_name(name: str) -> str:
    for part in PARTS:
        name = name.removesuffix(part)
    return name
