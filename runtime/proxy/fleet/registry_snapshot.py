# SPDX-License-Identifier: Apache-2.0
"""The state of a group of workers at one moment, for all decisions about a request."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pontil.runtime.errors import Unavailable
from pontil.runtime.proxy.fleet.worker_release import WorkerRelease
from pontil.runtime.proxy.routing.policy import WorkerLoad
from pontil.runtime.wire.messages import Hello


def system_fingerprint(hello: Hello, version: str) -> str:
    """Return the fingerprint. It changes with model, dtype, that of the KV cache, kernels (their quantization too) and
    version only: another number of workers, or a restart, gives the same tokens. `version` is the proxy's, for a worker
    that does not say its own."""
    parts = (hello.model_fingerprint, hello.dtype, hello.kv_cache_dtype, hello.kernels, hello.version or version)
    return "fp_" + hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


class FingerprintCache:
    """The fingerprint of the worker that was asked for last. Its Hello is a value that stays the same object for as
    long as the worker serves."""

    def __init__(self) -> None:
        self.known: tuple[Hello, str, str] | None = None

    def of(self, hello: Hello, version: str) -> str:
        entry = self.known
        if entry is None or entry[0] is not hello or entry[1] != version:
            entry = self.known = hello, version, system_fingerprint(hello, version)
        return entry[2]


class HasContext(Protocol):
    """A worker, or its load."""

    @property
    def context(self) -> int: ...


def context_length(workers: Sequence[HasContext]) -> int | None:
    """Return the longest sequence, in tokens, that every worker can hold; None without workers."""
    return min([worker.context for worker in workers], default=None)


@dataclass(frozen=True, slots=True)
class RegistrySnapshot:
    """The state that all decisions about one request use: the `workers` of one release that took requests at one
    moment, and the Hello of one, since all are alike."""

    workers: tuple[WorkerLoad, ...]
    any_hello: Hello | None
    fingerprints: FingerprintCache
    release: WorkerRelease | None = None

    @property
    def known_context(self) -> int | None:
        """The longest sequence in tokens; None while no worker is registered."""
        return context_length(self.workers)

    @property
    def context_length(self) -> int:
        """The longest sequence in tokens. Raises Unavailable while no worker is registered."""
        length = self.known_context
        if length is None:
            raise Unavailable("no worker is ready yet: try again in a moment")
        return length

    @property
    def dtype(self) -> str | None:
        """The model's dtype; None while no worker is registered."""
        return None if self.any_hello is None else self.any_hello.dtype

    @property
    def kv_cache_dtype(self) -> str | None:
        """The type of the KV cache's cells; None while no worker is registered, or where it does not say."""
        dtype = None if self.any_hello is None else self.any_hello.kv_cache_dtype
        return self.dtype if dtype == "auto" else dtype

    @property
    def embedding_size(self) -> int | None:
        """The length of the vectors of an embedding model; None while no worker is registered."""
        return None if self.any_hello is None else self.any_hello.embedding_size

    def system_fingerprint(self, version: str) -> str | None:
        """Return the fingerprint of everything besides the request that a seed's tokens depend on: model,
        dtypes, kernels and version. None while no worker is registered."""
        return None if self.any_hello is None else self.fingerprints.of(self.any_hello, version)
