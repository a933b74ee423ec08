# SPDX-License-Identifier: Apache-2.0
"""Headers for the collector of traces, which may hold its key: from a private file or from the environment."""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pontil.launcher.foundation.errors import OptionError
from pontil.launcher.keys.private_file import PrivateFile
from pontil.launcher.options.environment import TRACE_HEADER_VARIABLES
from pontil.launcher.options.options import LaunchOptions
from pontil.launcher.plan.addresses import is_own

# A field name of HTTP, and a value of visible characters.
NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}", re.ASCII)
VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?", re.ASCII)
MOST_BYTES = 1 << 14
REMEDY = "write each header on a line, as NAME: VALUE."

Headers = tuple[tuple[str, str], ...]


def read_trace_headers(options: LaunchOptions, variables: Mapping[str, str]) -> Headers:
    """Return the headers for the collector, those of the file over those of the environment. Raises OptionError for an
    invalid one, and if they would cross a network in the clear. No message shows a value."""
    if options.otlp_traces_endpoint is None:
        return ()
    headers = dict(of_environment(variables))
    if options.otlp_headers is not None:
        headers |= of_file(Path(options.otlp_headers))
    target = urlsplit(options.otlp_traces_endpoint)
    if headers and target.scheme == "http" and not is_own(str(target.hostname)):
        raise OptionError(
            f"--otlp-traces-endpoint {options.otlp_traces_endpoint} would carry its headers, which may hold a key, in "
            "the clear: use https, or leave the headers out."
        )
    return tuple(headers.items())


def of_file(path: Path) -> dict[str, str]:
    text = PrivateFile(path, "file of headers", REMEDY, MOST_BYTES).read()
    if len(text) == MOST_BYTES:
        raise OptionError(f"{path} is larger than a file of headers can be: {REMEDY}")
    lines = enumerate(text.decode(errors="replace").splitlines(), 1)
    header_lines = ((f"Line {number} of {path}", line) for number, line in lines if line.strip() and line[0] != "#")
    return dict(checked(place, *line.partition(":")[::2]) for place, line in header_lines)


def of_environment(variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the headers in the first variable that is set: NAME=VALUE with commas between them, values encoded as in a
    URL (the OTLP exporter's specification)."""
    variable_names: Iterable[str] = (name for name in TRACE_HEADER_VARIABLES if variables.get(name, "").strip())
    for variable in list(variable_names)[:1]:
        for number, item in enumerate(variables[variable].split(","), 1):
            if item.strip():
                name, _, value = item.partition("=")
                yield checked(f"Header {number} of {variable}", name, unquote(value))


def checked(place: str, name: str, value: str) -> tuple[str, str]:
    """Return a header's name in lower case and its value. Errors name it by its `place` and never show it."""
    name, value = name.strip(), value.strip()
    if not NAME.fullmatch(name) or not VALUE.fullmatch(value):
        raise OptionError(f"{place} is no header: {REMEDY}")
    return name.lower(), value
