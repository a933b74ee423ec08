# SPDX-License-Identifier: Apache-2.0
"""Progress of reading a checkpoint, reported while it is read."""

from collections.abc import Callable, Iterable, Iterator

from torch import Tensor

# Percent of the weights between two reports.
STEP = 5
# A quantized weight is stored in these parts, under its own name.
PARTS = (".numbers", ".scales", ".offsets", ".steps", ".blocks")


def told(
    tensors: Iterable[tuple[str, Tensor]], total: int, tell: Callable[[str], None]
) -> Iterator[tuple[str, Tensor]]:
    """Yield the same tensors and report progress; `total` is the number of weights."""
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
