# SPDX-License-Identifier: Apache-2.0
"""A short name for everything besides the request that a seed's tokens depend on, as OpenAI's `system_fingerprint`."""

import hashlib

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
        known = self.known
        if known is None or known[0] is not hello or known[1] != version:
            known = self.known = hello, version, system_fingerprint(hello, version)
        return known[2]
