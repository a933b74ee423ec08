# SPDX-License-Identifier: Apache-2.0
"""Messages about adapters that are loaded and unloaded while a launch runs, between a proxy and its workers."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class AdapterTable:
    """From proxy to worker: all that I know of adapters, by their names: the number of the last change, the digest of
    the adapter's files, empty where it was unloaded, the directory that has them, and the tokens that activate it, if
    there are any, in `invocations`. Of two changes the one with the higher number counts. Of the names in `retracted`
    the change was taken back; None: I am of an earlier version, that knows none. Sent after each Welcome, and with each
    change. Answered by an AdapterState."""

    sender: str
    receiver: str
    changes: dict[str, int] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    directories: dict[str, str] = field(default_factory=dict)
    retracted: list[str] | None = None
    invocations: dict[str, list[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AdapterState:
    """From worker to every proxy: the same that I know, and what became of it here: the digests of the adapters that
    were `loaded`, and why some `failed`, by their names. Sent after each Welcome, and when any of it changes. `memory`
    has the digests of those that are in memory now."""

    sender: str
    receiver: str
    changes: dict[str, int] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    directories: dict[str, str] = field(default_factory=dict)
    loaded: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    memory: list[str] = field(default_factory=list)
    retracted: list[str] | None = None
    invocations: dict[str, list[int]] = field(default_factory=dict)
