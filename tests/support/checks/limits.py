# SPDX-License-Identifier: Apache-2.0
"""Limits on state and wiring, as scripts/house.py counts them, and what is above them today."""

from collections.abc import Container, Mapping

# Fields of a class, those of its parents included; parameters of a function, without `self`.
MOST_FIELDS, MOST_PARAMETERS = 20, 7

# Values whose fields something outside decides: what each of them mirrors.
MIRRORS = {
    "Handoff": "a message on the wire",
    "Hello": "a message on the wire",
    "LaunchOptions": "the options of the command line",
    "Metrics": "the names of the proxy's metrics",
    "ProxyConfig": "the options that a proxy gets from the launcher, as JSON",
    "ProxyOptions": "options of the command line",
    "RequestRow": "a row of the usage log",
    "SamplingParams": "the API's parameters of sampling",
    "Submit": "a message on the wire",
    "Tokens": "a message on the wire",
    "WorkerConfig": "the options that a worker gets from the launcher, as JSON",
    "WorkerOptions": "options of the command line",
}

# Classes and functions above a limit today. A figure may shrink, not grow; one within the limit is removed here.
FIELDS = {
    "Architecture": 30,
    "ModelConfig": 28,
    "SpokenFunctionShape": 21,
    "SpokenParsedShape": 21,
    "WorkerLoad": 21,
}
PARAMETERS: dict[str, int] = {}
# Defaults of one name and value, and how many classes have them.
DEFAULTS: dict[str, int] = {}


def above(
    counts: Mapping[str, int], limit: int, exceptions: Mapping[str, int], exempt: Container[str] = ()
) -> dict[str, int]:
    """Return what is above the limit or its exception, and exceptions that are none any more."""
    found = {name: count for name, count in counts.items() if count > exceptions.get(name, limit)}
    past = {name: counts.get(name, 0) for name in exceptions if counts.get(name, 0) <= limit}
    return {name: count for name, count in (found | past).items() if name not in exempt}
