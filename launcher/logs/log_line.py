# SPDX-License-Identifier: Apache-2.0
"""One log entry: as a child writes it, as it crosses the pipe, and as people and programs read it."""

import json
import logging
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from pontil.runtime.foundation.line_pipe import json_object

# Attribute of a record that belongs to a request: `extra={"request": id}` in the call that logs it.
REQUEST = "request"
# The attribute for the id of its trace (W3C), where it has one.
TRACE_ID = "trace_id"
LAUNCHER = "launcher"


@dataclass(frozen=True, slots=True)
class LogLine:
    """One entry. `time` is in seconds since 1970. A message may have several lines: a traceback is one entry."""

    time: float
    level: str
    process: str
    message: str
    logger: str | None = None
    request: str | None = None
    trace_id: str | None = None

    @property
    def text(self) -> str:
        """Format for people. Every line has the prefix, so that a search for a process or a request finds all of an
        entry."""
        head = f"{stamp(self.time)} {self.level:<7} {self.process} |"
        if self.request is not None and self.request not in self.message:
            head += f" [{visible(self.request)}]"
        return "\n".join(f"{head} {visible(line)}" for line in self.message.splitlines() or [""])

    @property
    def json(self) -> str:
        """Format for programs: one object on one line."""
        optional_fields = {"logger": self.logger, "request": self.request, "trace_id": self.trace_id}
        present_fields = {name: value for name, value in optional_fields.items() if value is not None}
        values = {"time": stamp(self.time), "level": self.level, "process": self.process} | present_fields
        return json.dumps(values | {"message": self.message}, ensure_ascii=False)


def stamp(time: float) -> str:
    """Format as UTC, to the millisecond, so that logs of several hosts and invoices can be compared."""
    return datetime.fromtimestamp(time, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def visible(text: str) -> str:
    """Escape characters that would move a terminal's cursor or change its colours."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\t" else repr(char)[1:-1] for char in text)


MESSAGE = logging.Formatter("%(message)s")


class PipeFormatter(logging.Formatter):
    """Formats a child's records as JSON, one a line, for `read_line` in its supervisor."""

    def format(self, record: logging.LogRecord) -> str:
        record_fields = {"time": record.created, "level": record.levelname.lower(), "logger": record.name}
        optional_fields = {name: value for name in (REQUEST, TRACE_ID) if (value := getattr(record, name, None))}
        return json.dumps(record_fields | optional_fields | {"message": message_of(record)})


class TextFormatter(logging.Formatter):
    """Formats records as text, for a child that writes to a terminal itself."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self.process = process

    def format(self, record: logging.LogRecord) -> str:
        request = getattr(record, REQUEST, None)
        level = record.levelname.lower()
        return LogLine(record.created, level, self.process, message_of(record), record.name, request).text


def message_of(record: logging.LogRecord) -> str:
    """Return the message, with the traceback if there is one."""
    return MESSAGE.format(record).rstrip("\n")


def read_line(process: str, raw: bytes, now: float) -> LogLine:
    """Parse a line from a child's pipe. A line that is no record of ours was printed by a library or a dying
    interpreter."""
    text = raw.decode(errors="replace").rstrip()
    values = parsed(text)
    if values is None:
        return LogLine(now, "info", process, text)
    return LogLine(
        values["time"],
        values["level"],
        process,
        values["message"],
        values.get("logger"),
        values.get(REQUEST),
        values.get(TRACE_ID),
    )


def parsed(text: str) -> dict[str, Any] | None:
    values = json_object(text) if text.startswith('{"time": ') else None
    if values is None:
        return None
    texts = [values.get("level"), values.get("message")]
    texts += [values.get(name, "") for name in ("logger", REQUEST, TRACE_ID)]
    sound = isinstance(values.get("time"), float) and all(isinstance(field, str) for field in texts)
    return values if sound else None
