# SPDX-License-Identifier: Apache-2.0
"""The metadata of a GGUF file about its model. No torch here."""

from __future__ import annotations

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.facts.json_fields import MOST
from pontil.runtime.loaders.gguf.header import GgufHeader


class GgufFacts:
    """The metadata fields that begin with the architecture's name."""

    def __init__(self, header: GgufHeader, architecture: str) -> None:
        self.header, self.architecture = header, architecture

    def key(self, name: str) -> str:
        return f"{self.architecture}.{name}"

    def required(self, name: str) -> int:
        value = self.header.integer(self.key(name))
        if value is None:
            raise ModelError(f"the GGUF file does not state {self.key(name)} as one number: it cannot be run")
        return value

    def optional(self, name: str, default: int) -> int:
        return self.required(name) if self.states(name) else default

    def states(self, name: str) -> bool:
        return self.key(name) in self.header.metadata or self.key(name) in self.header.arrays

    def decimal(self, name: str, default: float) -> float:
        """Return a number as the model's authors wrote it: GGUF stores float32, of which the shortest decimal is
        meant."""
        value = self.header.number(self.key(name))
        if value is not None and not abs(value) <= MOST:
            raise ModelError(f"the GGUF file states {self.key(name)} as {value:g}: fetch it again")
        return default if value is None else float(f"{value:.7g}")

    def text(self, name: str, default: str) -> str:
        return self.header.text(self.key(name)) or default
