# SPDX-License-Identifier: Apache-2.0
"""Jitter of the waits that refused clients are told, so that they do not all come back at once."""

import secrets

BITS = 53


def fraction() -> float:
    """Return a random number from 0 to 1, without 1."""
    return secrets.randbits(BITS) / (1 << BITS)
