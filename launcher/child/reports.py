# SPDX-License-Identifier: Apache-2.0
"""Reports from a child to its supervisor, as JSON lines over the inherited report pipe."""

import json
from dataclasses import dataclass
from typing import Any, get_origin, get_type_hints


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """Progress during start-up; `text` is for people. `waits`: the child has done its own part, and only a proxy is
    missing."""

    text: str
    waits: bool = False


@dataclass(frozen=True, slots=True)
class ReadyReport:
    """The child serves. `facts` are worth showing: device, KV blocks, seconds."""

    facts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class HeartbeatReport:
    """A heartbeat: the number of the last step, its age in seconds, and whether work was waiting then."""

    step: int
    age: float
    working: bool


@dataclass(frozen=True, slots=True)
class SelfTestReport:
    """A proxy's answer to the command `self_test` of that number. Each possible route of a request has a `route` and,
    where known, the `bytes` of KV pulled, the `seconds` that copying took, and an `error`."""

    number: int
    routes: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class FailureReport:
    """The child cannot do its work for this reason (one sentence), and exits."""

    reason: str


@dataclass(frozen=True, slots=True)
class OrderReport:
    """A worker has carried out the order of this number, and its proxy knows. `drained`: it has no requests and gets
    none."""

    order: int
    drained: bool


@dataclass(frozen=True, slots=True)
class ChangeReport:
    """An operator asks, by a proxy's page, for the change that the `request` describes as on the control socket. The
    `number` is the proxy's own."""

    number: int
    request: dict[str, Any]


@dataclass(frozen=True, slots=True)
class UseReport:
    """A proxy's count of the requests of each model, by its group, with how many are open and how many wait for a
    worker."""

    models: dict[str, list[int]]


Report = (
    ProgressReport
    | ReadyReport
    | HeartbeatReport
    | SelfTestReport
    | FailureReport
    | OrderReport
    | ChangeReport
    | UseReport
)
KINDS: dict[str, type[Report]] = {
    "ready": ReadyReport,
    "progress": ProgressReport,
    "heartbeat": HeartbeatReport,
    "tested": SelfTestReport,
    "failed": FailureReport,
    "settled": OrderReport,
    "asked": ChangeReport,
    "used": UseReport,
}
KIND_OF = {made: kind for kind, made in KINDS.items()}


# The types of each report's fields in JSON, where a whole number may stand for another.
FIELDS: dict[type[Report], dict[str, tuple[type, ...]]] = {
    made: {
        name: (int, float) if hint is float else (get_origin(hint) or hint,)
        for name, hint in get_type_hints(made).items()
    }
    for made in KINDS.values()
}


def fields_of(report: Report) -> dict[str, Any]:
    """Return its fields as they are: asdict, which would copy them, takes dozens of calls for each heartbeat."""
    return {name: getattr(report, name) for name in FIELDS[type(report)]}


def encode(report: Report) -> bytes:
    """Return the report as one line. Facts stand beside the kind: a proxy's facts and a worker's have no field in
    common."""
    values = report.facts if isinstance(report, ReadyReport) else fields_of(report)
    return json.dumps({**values, "kind": KIND_OF[type(report)]}, default=str).encode() + b"\n"


def decode(line: bytes) -> Report | None:
    """Return the report, or None for a line that is no report: only a bug of pontil writes one, or a child that
    somebody else has taken over. Every field of a report has its type."""
    try:
        values = json.loads(line)
        kind = values.pop("kind")
        report = ReadyReport(values) if kind == "ready" else KINDS[kind](**values)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    types = FIELDS[type(report)]
    return report if all(isinstance(getattr(report, name), kinds) for name, kinds in types.items()) else None
