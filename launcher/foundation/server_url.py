# SPDX-License-Identifier: Apache-2.0
"""The address of a running server, as every client command takes it: as URL, HOST:PORT, or with /v1 at its end."""

import re

SERVER = "http://127.0.0.1:8000"
# An address on the command line, which no question looks like.
ADDRESS = re.compile(r"https?://\S+|(?:[\w.-]+|\[[0-9a-fA-F:.]+\]):\d{1,5}(?:/v1)?/?")


def full_url(address: str) -> str:
    """Return the URL before the paths."""
    return (address if "://" in address else f"http://{address}").rstrip("/").removesuffix("/v1")


def is_address(word: str) -> bool:
    return ADDRESS.fullmatch(word) is not None
