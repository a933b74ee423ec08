# SPDX-License-Identifier: Apache-2.0
"""All numbers of a step in one piece of memory, copied to the device at once."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pontil.runtime.engine.device.link import DeviceLink, HostWords

Array = NDArray[Any]
DTYPES: dict[np.dtype[Any], torch.dtype] = {
    np.dtype(np.int32): torch.int32,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.float32): torch.float32,
    np.dtype(np.float64): torch.float64,
}
# Every section begins at a multiple of 16 bytes, for which kernels are compiled.
ALIGNED = 4
# A step has a copy for its layers and at most one for draws that waited. Both may be on their way when the first one of
# the next step is written.
COPIES_IN_FLIGHT = 3


class StepSections:
    """Sections of a step, and after `send` their copies on the device."""

    def __init__(self) -> None:
        self.arrays: list[Array] = []
        self.sent: list[Tensor] = []

    def add(self, arrays: Sequence[Array]) -> Callable[[], list[Tensor]]:
        """Add sections; return what returns them as they are on the device."""
        here = slice(len(self.arrays), len(self.arrays) + len(arrays))
        self.arrays += arrays
        return lambda: self.sent[here]


class StepBuffer:
    """Memory of the device at one address, and host memory for the copies that may be on their way to it.

    Sections follow each other in the order in which they are given, so those that stand first keep their addresses from
    step to step as long as their sizes are the same.
    """

    def __init__(self, link: DeviceLink, words: int) -> None:
        self.link, self.capacity = link, words
        self.hosts = [link.host_words(words) for _ in range(COPIES_IN_FLIGHT)]
        self.memory = torch.zeros(words, dtype=torch.int32, device=link.device)
        self.copies = 0

    def send(self, sections: Sequence[Array]) -> list[Tensor]:
        """Copy the sections in one piece; return each as a tensor of the device. Sections that do not fit are copied to
        memory of their own, in one piece too."""
        places, size = self.places(sections)
        fitting = sum(end <= self.capacity for _, end in places)
        host = self.hosts[self.copies % len(self.hosts)]
        tensors = self.copy(host, self.memory, sections[:fitting], places[:fitting])
        if fitting < len(sections):
            overflow, (places, size) = sections[fitting:], self.places(sections[fitting:])
            larger = torch.empty(size, dtype=torch.int32, device=self.link.device)
            tensors += self.copy(self.link.host_words(size), larger, overflow, places)
        self.copies += 1
        return tensors

    def places(self, sections: Sequence[Array]) -> tuple[list[tuple[int, int]], int]:
        """The first word of each section and the one behind it."""
        places, at = [], 0
        for section in sections:
            end = at + section.nbytes // 4
            places.append((at, end))
            at = -(-end // ALIGNED) * ALIGNED
        return places, at

    def copy(
        self, host: HostWords, device: Tensor, sections: Sequence[Array], places: Sequence[tuple[int, int]]
    ) -> list[Tensor]:
        if not places:
            return []
        # A step has dozens of sections: their bytes are copied, and the device's words divided, without a call of
        # numpy or torch for each.
        written = host.words.data.cast("B")
        sizes, at = list[int](), 0
        for section, (start, end) in zip(sections, places, strict=True):
            if start < end:
                written[4 * start : 4 * end] = np.ascontiguousarray(section).data.cast("B")
            sizes += (start - at, end - start)
            at = end
        sent = device[:at]
        self.link.send(host, sent)
        parts = sent.split_with_sizes(sizes)[1::2]
        return [typed(part, section) for part, section in zip(parts, sections, strict=True)]


def typed(words: Tensor, section: Array) -> Tensor:
    """Return words of the device as what the section is."""
    numbers = words if section.dtype == np.int32 else words.view(DTYPES[section.dtype])
    return numbers if section.ndim == 1 else numbers.view(section.shape)
