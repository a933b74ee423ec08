# SPDX-License-Identifier: Apache-2.0
"""Prompts whose KV another router moves from one worker to another, each behind a proxy of its own.

The first proxy's answer says where the KV is kept (`told`), the router sends that on unread, and the second proxy
decides whether to believe it (`claim`): in a system with keys only what one of its own proxies has signed, else only
peers on this machine. Clients could otherwise make a worker connect to any address.
"""

import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any

from pontil.runtime.foundation.loopback import is_loopback
from pontil.runtime.proxy.fleet.registry import Registry
from pontil.runtime.proxy.requests.request import Request
from pontil.runtime.proxy.routing.policy import CollocatedRoute
from pontil.runtime.wire.request_messages import CLAIM, HOLD

# Characters of a name that a client tells.
LONGEST = 512
PLACE = ("remote_engine_id", "remote_host", "remote_request_id")
TCP = "tcp://"


class KVTransfers:
    """The kept prompts of a proxy's workers, and of those of other proxies. `key` signs what is told, where the system
    has keys."""

    def __init__(self, registry: Registry, key: bytes | None) -> None:
        self.registry, self.key = registry, key

    def told(self, request: Request) -> dict[str, Any] | None:
        """Return what the answer says about its kept prompt; None if its worker is gone, or has no address."""
        route = request.attempts.route
        worker = self.registry.workers.get(route.worker.incarnation) if isinstance(route, CollocatedRoute) else None
        if worker is None or not worker.hello.peer_endpoint.startswith(TCP):
            return None
        host, _, port = worker.hello.peer_endpoint.removeprefix(TCP).rpartition(":")
        place = {
            "remote_engine_id": worker.hello.sender,
            "remote_host": host.strip("[]"),
            "remote_port": int(port),
            "remote_request_id": transfer_of(request),
        }
        blocks = -(-len(request.prompt) // worker.hello.block_size)
        flags = {"do_remote_prefill": True, "do_remote_decode": False}
        signature = {} if self.key is None else {"signature": self.signature(place)}
        return flags | place | {"remote_block_ids": list(range(blocks))} | signature

    def claim(self, told: Mapping[str, Any]) -> "KeptPrompt":
        """Return the kept prompt that another worker's proxy told. Raises ValueError, which says why it is not
        believed."""
        engine, host, transfer_id = (text_of(told, name) for name in PLACE)
        port = told.get("remote_port")
        if not isinstance(port, int) or isinstance(port, bool) or not 0 < port < 65536:
            raise ValueError("remote_port is no port")
        try:
            address = ip_address(host)
        except ValueError:
            raise ValueError("remote_host is no IP address") from None
        place = {name: told[name] for name in (*PLACE, "remote_port")}
        if self.key is not None and not hmac.compare_digest(self.signature(place), signature_of(told)):
            raise ValueError("it is not signed with this system's keys")
        if self.key is None and not is_loopback(host):
            raise ValueError("without keys only workers of this machine are asked: start both with the same --keys")
        shown_host = f"[{host}]" if address.version == 6 else host
        return KeptPrompt(engine, f"{TCP}{shown_host}:{port}", transfer_id, self.secret(transfer_id))

    def signature(self, place: Mapping[str, Any]) -> str:
        return self.made("place", json.dumps(place, sort_keys=True))

    def secret(self, transfer_id: str) -> str | None:
        """Return the secret of a transfer, which both proxies derive; None in a system without keys."""
        return None if self.key is None else self.made("secret", transfer_id)

    def made(self, purpose: str, text: str) -> str:
        assert self.key is not None, "only a system with keys signs"
        return hmac.digest(self.key, f"{purpose} {text}".encode(), "sha256").hex()


@dataclass(frozen=True, slots=True)
class KeepPrompt:
    """The wish that the prompt's KV is kept for another worker."""

    transfers: KVTransfers

    def submitted(self, request: Request) -> dict[str, Any]:
        """Return the fields of a Submit. Of an answer that is continued nothing is kept."""
        if any(answer.ids for answer in request.answers):
            return {}
        transfer_id = transfer_of(request)
        return {"phase": HOLD, "transfer_id": transfer_id, "transfer_secret": self.transfers.secret(transfer_id)}

    def claims(self, request: Request) -> bool:
        return False

    def told(self, request: Request) -> dict[str, Any] | None:
        return self.transfers.told(request)


@dataclass(frozen=True, slots=True)
class KeptPrompt:
    """A prompt whose KV the worker `engine` keeps for whoever claims it at its `endpoint`."""

    engine: str
    endpoint: str
    transfer_id: str
    secret: str | None = field(default=None, repr=False)

    def submitted(self, request: Request) -> dict[str, Any]:
        """Return the fields of a Submit. Only the first attempt claims: a later one would be too late."""
        if request.attempts.number > 0:
            return {}
        return {
            "phase": CLAIM,
            "transfer_id": self.transfer_id,
            "transfer_secret": self.secret,
            "peer": self.engine,
            "peer_endpoint": self.endpoint,
        }

    def claims(self, request: Request) -> bool:
        """Return whether the prompt's KV is to come from a worker of another proxy."""
        return request.attempts.number <= 0

    def told(self, request: Request) -> None:
        return None


RemoteKV = KeepPrompt | KeptPrompt


def transfer_of(request: Request) -> str:
    return f"{request.id}.{request.attempts.number}"


def text_of(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST or not value.isascii() or not value.isprintable():
        raise ValueError(f"{name} is missing, or no short text")
    return value


def signature_of(fields: Mapping[str, Any]) -> str:
    try:
        return text_of(fields, "signature")
    except ValueError:
        return ""
