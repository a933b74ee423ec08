# SPDX-License-Identifier: Apache-2.0
"""Ollama's error object: {"error": message}."""

from typing import Any

# Every path from here on is of this API, those that are not served too.
PATH = "/api"


def is_of_ollama(path: str) -> bool:
    return path == PATH or path.startswith(f"{PATH}/")


def ollama_error(message: str) -> dict[str, Any]:
    return {"error": message}
