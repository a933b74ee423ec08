# SPDX-License-Identifier: Apache-2.0
"""Readers of an option's text or TOML value: they return the field's value or say what it must be."""

import re
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pontil.runtime.config.web_address import host_entry

# Converts the value from a flag or a file to the field's value; the ValueError has words that follow the flag's name.
Reader = Callable[[Any], Any]
ADAPTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}", re.ASCII)
# A name and a directory.
ADAPTER = re.compile(rf"\s*({ADAPTER_NAME.pattern})=(.+)", re.ASCII | re.DOTALL)
# A host name, or * for any.
HOST = re.compile(r"\*|[A-Za-z0-9._-]{1,253}", re.ASCII)
# A page's scheme, host and maybe port, or * for any.
ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]{0,31}://(?:[a-z0-9._-]{1,253}|\[[0-9a-f:.]{2,45}\])(?::\d{1,5})?", re.ASCII)
# Seconds of the units of a time.
DURATIONS = {None: 1.0, "s": 1.0, "ms": 0.001}
# Where a collector takes traces, if its URL names no path (the OTLP specification, "Endpoint URLs for OTLP/HTTP").
TRACES_PATH = "/v1/traces"
UNITS = {"": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("KMGT", 1)
    for suffix, base in (("B", 1000), ("IB", 1024))
}


def text(value: Any) -> str:
    if not isinstance(value, str) or not value or not value.isprintable():
        raise ValueError("must be a text on one line")
    return value


def choice(*names: str) -> Reader:
    def read(value: Any) -> str:
        if value not in names:
            raise ValueError(f"must be one of {', '.join(names)}")
        return str(value)

    return read


def choices(*names: str) -> Reader:
    """Parse comma-separated names, each at most once."""

    def read(value: Any) -> tuple[str, ...]:
        listed = value.split(",") if isinstance(value, str) else value
        if not isinstance(listed, list) or not listed or [one for one in names if one in listed] != sorted(listed):
            raise ValueError(f"must be of {', '.join(names)}, each once, with commas between them")
        return tuple(listed)

    return read


def whole(low: int, high: int = 2**31 - 1) -> Reader:
    def read(value: Any) -> int:
        if isinstance(value, str) and re.fullmatch(r"\d{1,12}", value, re.ASCII):
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise ValueError(f"must be a whole number from {low} to {high}")
        return value

    return read


def number(low: float, high: float) -> Reader:
    def read(value: Any) -> float:
        if isinstance(value, str) and re.fullmatch(r"\d{1,12}(\.\d{1,9})?", value, re.ASCII):
            value = float(value)
        if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
            raise ValueError(f"must be a number from {low:g} to {high:.15g}")
        return float(value)

    return read


def seconds(value: Any) -> float:
    if isinstance(value, str) and re.fullmatch(r"\d{1,9}(\.\d{1,9})?", value, re.ASCII):
        value = float(value)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1e6:
        raise ValueError("must be a number of seconds from 0 to 1000000")
    return float(value)


def some_seconds(value: Any) -> float:
    """Parse seconds above zero, for a deadline that could never be met at 0."""
    if not seconds(value):
        raise ValueError("must be more than 0 seconds")
    return seconds(value)


def duration(value: Any) -> float:
    """Parse seconds above zero, from a number or from one with a unit: 2s is 2, 500ms is 0.5."""
    parts = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)\s*(ms|s)?", str(value), re.ASCII)
    duration_seconds = None if isinstance(value, bool) or parts is None else float(parts[1]) * DURATIONS[parts[2]]
    if duration_seconds is None or not 0 < duration_seconds <= 1e6:
        raise ValueError("must be a time like 2s, 500ms or a number of seconds, more than 0 and at most 1000000 s")
    return duration_seconds


def size(value: Any) -> int:
    """Parse bytes, from a whole number or from a number with a unit: 2GiB is 2**31, 512MB is 512000000."""
    parts = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?)\s*([A-Z]*)", str(value).upper(), re.ASCII)
    if isinstance(value, bool) or parts is None or parts[2] not in UNITS or ("." in parts[1] and not parts[2]):
        raise ValueError("must be a size like 2GiB, 512MB or a number of bytes")
    count = int(float(parts[1]) * UNITS[parts[2]])
    if not count:
        raise ValueError("must be more than nothing")
    return count


def size_or_none(value: Any) -> int:
    """Parse bytes, of which there may be none."""
    return 0 if str(value) == "0" else size(value)


def switch(value: Any) -> bool:
    """Parse a boolean, also from the texts that the environment can give."""
    value = {"true": True, "1": True, "false": False, "0": False}.get(value, value) if isinstance(value, str) else value
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def names(value: Any) -> tuple[str, ...]:
    """Parse comma-separated names or addresses of hosts, without ports."""
    host_list = value.split(",") if isinstance(value, str) else value
    if not isinstance(host_list, list) or not all(isinstance(host, str) for host in host_list):
        raise ValueError("must be names of hosts with commas between them")
    hosts = tuple(host.strip() for host in host_list)
    if not hosts or not all(HOST.fullmatch(host) or is_address(host.strip("[]")) for host in hosts):
        raise ValueError("must be names of hosts, without ports, with commas between them")
    return hosts


def media_domains(value: Any) -> tuple[str, ...]:
    """Parse comma-separated hosts from which files may be fetched, with or without ports."""
    listed = value.split(",") if isinstance(value, str) else value
    if not isinstance(listed, list) or not listed or not all(isinstance(entry, str) for entry in listed):
        raise ValueError("must be hosts with commas between them")
    entries = tuple(entry.strip().lower() for entry in listed)
    for entry in entries:
        host_entry(entry)
    return entries


def adapters(value: Any) -> tuple[str, ...]:
    """Parse comma-separated adapters like `sql=/path/to/sql`, each with a name of its own."""
    listed_pairs = value.split(",") if isinstance(value, str) else value
    matches = [ADAPTER.fullmatch(pair) if isinstance(pair, str) else None for pair in listed_pairs or ()]
    if not matches or not all(matches):
        raise ValueError("must be names and directories like sql=/path/to/sql, with commas between them")
    found = {match[1]: Path(match[2]).absolute() for match in matches if match is not None}
    if len(found) != len(matches):
        raise ValueError("must have a name of its own for each adapter")
    return tuple(f"{name}={path}" for name, path in found.items())


def directories(value: Any) -> tuple[str, ...]:
    """Parse comma-separated directories."""
    listed_paths = value.split(",") if isinstance(value, str) else value
    if not isinstance(listed_paths, list) or not all(isinstance(path, str) and path.strip() for path in listed_paths):
        raise ValueError("must be directories with commas between them")
    if not listed_paths:
        raise ValueError("must be directories with commas between them")
    return tuple(str(Path(path.strip()).absolute()) for path in listed_paths)


def origins(value: Any) -> tuple[str, ...]:
    """Parse comma-separated origins of pages, or * for any."""
    origin_list = value.split(",") if isinstance(value, str) else value
    if not isinstance(origin_list, list) or not all(isinstance(origin, str) for origin in origin_list):
        raise ValueError("must be origins with commas between them")
    page_origins = tuple(origin.strip().lower() for origin in origin_list)
    if not page_origins or not all(ORIGIN.fullmatch(origin) for origin in page_origins):
        raise ValueError("must be origins like https://app.example:8443, without a path, with commas between them")
    return page_origins


def is_address(value: str) -> bool:
    try:
        ip_address(value)
    except ValueError:
        return False
    return True


def collector(value: Any) -> str:
    """Parse the URL of an OTLP collector; one without a path gets that of traces. It can hold no secret: every user of
    the machine could read that."""
    try:
        parts = urlsplit(text(value))
        odd = parts.port == 0 or "@" in parts.netloc or "?" in str(value) or "#" in str(value) or " " in str(value)
        is_http = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        odd, is_http = True, False
    if odd or not is_http:
        raise ValueError("must be a URL like http://127.0.0.1:4318, without a user, a password or a query")
    return parts._replace(path=TRACES_PATH if parts.path in ("", "/") else parts.path).geturl()
