# SPDX-License-Identifier: Apache-2.0
"""The signature of a thinking block: a seal of this launch (HMAC-SHA256), by which a block that comes back is known to
be reasoning that a model here wrote, unchanged."""

import base64
import hmac
import secrets

from pontil.runtime.config.proxy_config import ProxyConfig

KEY_BYTES = 32


class ThinkingSeal:
    """The seals of one key, which all proxies of a launch have."""

    def __init__(self, key: bytes) -> None:
        self.key = key

    @classmethod
    def of(cls, config: ProxyConfig) -> "ThinkingSeal":
        """Return the launch's seal; a proxy that was given no key has one of its own."""
        return cls(secrets.token_bytes(KEY_BYTES) if config.seal_key is None else bytes.fromhex(config.seal_key))

    def signature(self, thought: str) -> str:
        digest = hmac.digest(self.key, thought.encode("utf-8", "surrogatepass"), "sha256")
        return base64.b64encode(digest).decode()

    def holds(self, thought: str, signature: str) -> bool:
        return hmac.compare_digest(self.signature(thought).encode(), signature.encode("utf-8", "surrogatepass"))
