# SPDX-License-Identifier: Apache-2.0
"""The two requests that llm-d's routing sidecar makes of one, replayed with its fields: the first to a prefill worker's
endpoint, for one token, the second to a decode worker's with what the first answer told."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from served import START_TIMEOUT, Reply, Served, free_port, launched, wait_for

KEEP: dict[str, Any] = {
    "do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None,
    "remote_host": None, "remote_port": None,
}  # fmt: skip
LIMITS = ("max_tokens", "max_completion_tokens")


def first_of(body: dict[str, Any]) -> dict[str, Any]:
    """Return the request for the prefill worker."""
    kept = {name: value for name, value in body.items() if name != "stream_options"}
    return kept | {"kv_transfer_params": KEEP, "stream": False} | dict.fromkeys(LIMITS, 1)


@dataclass(frozen=True, slots=True)
class Sidecar:
    """Endpoints of a prefill and a decode worker, each launched with --http."""

    prefill: Served
    decode: Served

    def keep(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Make the first request; return its answer."""
        reply = self.prefill.request("POST", path, first_of(body))
        answer: dict[str, Any] = reply.json()
        assert reply.status == 200, answer
        return answer

    def go_on(self, path: str, body: dict[str, Any], told: Any) -> Reply:
        return self.decode.request("POST", path, body | {"kv_transfer_params": told})

    def ask(
        self, path: str, body: dict[str, Any], between: Callable[[], object] = lambda: None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Make both requests, and something `between` them; return both answers."""
        first = self.keep(path, body)
        between()
        reply = self.go_on(path, body, first.get("kv_transfer_params"))
        second: dict[str, Any] = reply.json()
        assert reply.status == 200, second
        return first, second


def driven(stack: ExitStack, folder: Path, role: str, *options: str) -> Served:
    """Launch one worker of this role with an endpoint of its own; it is ready later."""
    (folder / role).mkdir()
    port = free_port()
    arguments = ("--role", role, "--http", str(port), "--share-devices", *options)
    served = stack.enter_context(launched(folder / role, *arguments, ready=False))
    served.port = port
    return served


def both_ready(stack: ExitStack, folder: Path, *options: str) -> Sidecar:
    pair = Sidecar(driven(stack, folder, "prefill", *options), driven(stack, folder, "decode", *options))
    for served in (pair.prefill, pair.decode):
        wait_for(served.is_ready, START_TIMEOUT, "readiness")
    return pair
