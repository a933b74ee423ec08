# SPDX-License-Identifier: Apache-2.0
"""Single requests of commands to a running server."""

import http.client
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from pontil.launcher.foundation.errors import LaunchError

TIMEOUT = 300.0
NO_KEY: Mapping[str, str] = MappingProxyType({})


def connect(url: str, timeout: float = TIMEOUT) -> http.client.HTTPConnection:
    """Return a connection, not yet opened. Raises LaunchError for an invalid address."""
    try:
        place = urlsplit(url if "://" in url else f"http://{url}")
        host, port = place.hostname, place.port
    except ValueError:
        host, port = None, None
    if not host or place.scheme not in ("http", "https"):
        raise LaunchError(f"{url} is no address of a server: write it like http://127.0.0.1:8000")
    kind = http.client.HTTPSConnection if place.scheme == "https" else http.client.HTTPConnection
    return kind(host, port, timeout=timeout)


def fetch(url: str, path: str, timeout: float = TIMEOUT, key: Mapping[str, str] = NO_KEY) -> Any:
    """Return the JSON that a server answers a GET with. Raises LaunchError."""
    connection = connect(url, timeout)
    try:
        connection.request("GET", path, headers=dict(key))
        response = connection.getresponse()
        data = response.read()
        if response.status != 200:
            raise LaunchError(reason(data, response.status))
        return json.loads(data)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise LaunchError(f"the server at {url} did not answer ({error}): is `launch` running?") from None
    finally:
        connection.close()


def reason(data: bytes, status: int) -> str:
    """Return the sentence in an OpenAI error object, and for a missing key also what to do."""
    advice = "; give its file with --key" if status in (401, 403) else ""
    try:
        return str(json.loads(data)["error"]["message"]) + advice
    except (ValueError, KeyError, TypeError):
        return f"the server answered with something else than JSON: {data[:80]!r}"


def first_model(url: str, key: Mapping[str, str] = NO_KEY) -> str:
    models = fetch(url, "/v1/models", key=key).get("data") or []
    if not models:
        raise LaunchError(f"the server at {url} serves no model yet: try again in a moment")
    return str(models[0]["id"])
