# SPDX-License-Identifier: Apache-2.0
"""Options of proxies and workers alike."""

from dataclasses import dataclass

from pontil.runtime.config.declaration import ENGINE, MODEL, SUPERVISION, option
from pontil.runtime.config.readers import adapters, choice, directories, size, some_seconds, switch

LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, kw_only=True)
class SharedDeadlines:
    """The time limits that proxies and workers keep alike, in seconds."""

    first_byte_timeout: float = option(
        SUPERVISION,
        60.0,
        "Longest wait of a request for its first token, while its prompt is not being computed; "
        "who would wait longer is refused at once.",
        some_seconds,
        "SECONDS",
    )
    link_timeout: float = option(
        SUPERVISION,
        5.0,
        "Silence of a connection between hosts after which it is taken for cut.",
        some_seconds,
        "SECONDS",
    )


@dataclass(frozen=True, kw_only=True)
class SharedOptions:
    """The rest of what both are told."""

    adapter: tuple[str, ...] = option(
        MODEL,
        (),
        "A LoRA adapter that clients ask for by this name as the model: a directory of PEFT.",
        adapters,
        "NAME=DIR",
    )
    adapter_directory: tuple[str, ...] = option(
        MODEL,
        (),
        "A directory of whose adapters an operator may load some while the launch runs.",
        directories,
        "DIR",
    )
    log_level: str = option(SUPERVISION, "info", "Least severity that is logged.", choice(*LEVELS), "|".join(LEVELS))
    allow_chaos: bool = option(
        SUPERVISION,
        False,
        "Let `pontil chaos` of this user kill, stop and slow this launch's processes; for trials.",
        switch,
    )
    lease_client_memory: int | None = option(
        ENGINE,
        None,
        "Most KV cache that the leases of one API key hold, in all workers (default: what --lease-share leaves).",
        size,
        "SIZE",
    )

    @property
    def adapter_paths(self) -> dict[str, str]:
        """The directories of the adapters, by their names."""
        return {name: path for name, _, path in (pair.partition("=") for pair in self.adapter)}
