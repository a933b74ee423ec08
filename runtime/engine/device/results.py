# SPDX-License-Identifier: Apache-2.0
"""All results of a step in one piece of memory, copied to the host at once."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pontil.runtime.engine.device.link import STEPS_IN_FLIGHT, Arrival, DeviceLink, HostWords, Words
from pontil.runtime.engine.device.step_buffer import Array

NUMPY_TYPES: dict[torch.dtype, Any] = {torch.int32: np.int32, torch.float32: np.float32}


@dataclass(frozen=True, slots=True)
class Place:
    """The words of a tensor of 32 bits an element among a step's results."""

    start: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def end(self) -> int:
        return self.start + math.prod(self.shape)

    def read(self, words: Words) -> Array:
        array: Array = words[self.start : self.end].view(NUMPY_TYPES[self.dtype]).reshape(self.shape)
        return array


class ResultBuffer:
    """Memory of the device at one address, for the results of one step after the other: ids first, of draws that follow
    each other, then anything else. `last` int32 [most draws] has the ids of the step before: rows may refer to them.

    A step may be attempted several times. Only `begin` writes `last`, and host memory is used up by an attempt that
    reached its end: until then the results of the step before may be in the next."""

    def __init__(self, link: DeviceLink, draws: int, words: int) -> None:
        self.link, self.draws = link, draws
        self.hosts = [link.host_words(words) for _ in range(STEPS_IN_FLIGHT)]
        self.device = torch.zeros(words, dtype=torch.int32, device=link.device)
        self.last = torch.zeros(draws, dtype=torch.int32, device=link.device)
        self.fetches = self.used = 0
        self.pieces: list[Tensor] = []

    @property
    def ids(self) -> Tensor:
        """The ids drawn last, int32 [most draws]."""
        return self.device[: self.draws]

    def begin(self) -> None:
        """Begin a step: the ids drawn last are now those of the step before."""
        self.last.copy_(self.ids)

    def clear(self, draws: int) -> None:
        """Begin an attempt at the step, which makes so many draws."""
        assert draws <= self.draws
        self.used, self.pieces = draws, []

    def add(self, made: Sequence[Tensor]) -> list[Place]:
        """Add tensors of 32 bits an element."""
        places = []
        for tensor in made:
            places.append(Place(self.used, tuple(tensor.shape), tensor.dtype))
            self.pieces.append(tensor.reshape(-1).view(torch.int32))
            self.used = places[-1].end
        return places

    def fetch(self) -> Arrival:
        """Copy the step's results to the host, in one piece: at least a word, which arrives when the step is over."""
        self.used = max(self.used, 1)
        arrival = self.start_copy(self.hosts[self.fetches % len(self.hosts)])
        self.fetches += 1
        return arrival

    def start_copy(self, host: HostWords) -> Arrival:
        if self.used > len(self.device):
            first = self.used - sum(piece.numel() for piece in self.pieces)
            whole = torch.cat([self.device[:first], *self.pieces])
            return self.link.fetch(whole, self.link.host_words(self.used))
        at = self.used - sum(piece.numel() for piece in self.pieces)
        for piece in self.pieces:
            self.device[at : at + piece.numel()].copy_(piece)
            at += piece.numel()
        return self.link.fetch(self.device[: self.used], host)
