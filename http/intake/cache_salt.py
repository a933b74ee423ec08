# SPDX-License-Identifier: Apache-2.0
"""The salt that separates the prefix caches of callers."""

import hashlib

from pontil.runtime.proxy.requests.request import NO_KEY


def cache_salt(caller: str, stated: str, *, share_prefixes: bool) -> str:
    """Return the salt of a request that stated this one, "" for none.

    `cached_tokens` and the time to the first token reveal whether a prompt with the same prefix was sent before: so
    each caller has a prefix cache of its own, unless the operator shares it. The salt is a digest, so that no stated
    value equals another caller's salt; a caller's name has no NUL.
    """
    if share_prefixes or caller == NO_KEY:
        return stated
    return hashlib.sha256(f"{caller}\0{stated}".encode("utf-8", "surrogatepass")).hexdigest()
