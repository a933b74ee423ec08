# SPDX-License-Identifier: Apache-2.0
"""Prompts whose KV another router moves from one worker to another, each behind a proxy of its own.

The first proxy's answer says where the KV is kept (`told`), the router sends that on unread, and the second proxy
decides whether to believe it (`claim`). A worker of its own it asks at the address that it knows. Others it asks in a
system with keys only where one of its own proxies has signed the address; else only on this machine, where it was
started for a router. Clients could otherwise make a worker connect to any address.
"""

import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, ClassVar

from pontil.runtime.foundation.loopback import is_loopback
from pontil.runtime.proxy.fleet.registry import Registry
from pontil.runtime.proxy.requests.request import Request
from pontil.runtime.wire.request_messages import CLAIM, HOLD

# Characters of a name that a client tells, the numbers of blocks that it tells, and such a number.
LONGEST, MOST_TOLD, MOST_BLOCKS = 512, 1 << 16, 1 << 31
ENGINE, HOST, PORT, REQUEST = "remote_engine_id", "remote_host", "remote_port", "remote_request_id"
BLOCKS, SIGNATURE = "remote_block_ids", "signature"
TCP = "tcp://"


class KVTransfers:
    """The kept prompts of a proxy's workers, and of those of other proxies. `key` signs what is told, where the system
    has keys; without them `neighbours` are believed, which are workers of other launches on this machine."""

    def __init__(self, registry: Registry, key: bytes | None, neighbours: bool) -> None:
        self.registry, self.key, self.neighbours = registry, key, neighbours

    def told(self, request: Request) -> dict[str, Any] | None:
        """Return what the answer says about its kept prompt; None if it is not kept, or its worker is gone. A worker
        that has an address on its own machine only, and no port, can be asked by its own proxies."""
        route, blocks = request.attempts.route, request.reports.kept_blocks
        if route is None or route.is_pair or blocks is None:
            return None
        worker = self.registry.workers.get(route.decode.incarnation)
        if worker is None:
            return None
        host, port = address_of(worker.hello.peer_endpoint)
        place = {ENGINE: worker.hello.sender, HOST: host, PORT: port, REQUEST: transfer_of(request)}
        flags = {"do_remote_prefill": True, "do_remote_decode": False}
        signature = {} if self.key is None else {SIGNATURE: self.signature(place)}
        return flags | place | {BLOCKS: blocks} | signature

    def claim(self, told: Mapping[str, Any]) -> "KeptPrompt":
        """Return the kept prompt that another worker's proxy told, in `readable` fields. Raises ValueError, which says
        why it is not believed."""
        engine, transfer_id, blocks = text_of(told, ENGINE), text_of(told, REQUEST), told.get(BLOCKS)
        if blocks is None:
            raise ValueError(f"{BLOCKS} is no list of at most {MOST_TOLD} block numbers")
        own = self.registry.workers.get(engine)
        endpoint = self.believed(told) if own is None else own.hello.peer_endpoint
        return KeptPrompt(engine, endpoint, transfer_id, blocks, self.secret(transfer_id))

    def believed(self, told: Mapping[str, Any]) -> str:
        """Return the endpoint that was told of a worker of another proxy. Raises ValueError as `claim`."""
        host, port = text_of(told, HOST), told.get(PORT)
        if not isinstance(port, int) or isinstance(port, bool) or not 0 < port < 65536:
            raise ValueError("remote_port is no port")
        try:
            address = ip_address(host)
        except ValueError:
            raise ValueError("remote_host is no IP address") from None
        place = {name: told[name] for name in (ENGINE, HOST, PORT, REQUEST)}
        if self.key is not None and not hmac.compare_digest(self.signature(place), signature_of(told)):
            raise ValueError("it is not signed with this system's keys")
        if self.key is None and not self.neighbours:
            raise ValueError("without keys only workers of this system are asked: start both with the same --keys")
        if self.key is None and not is_loopback(host):
            raise ValueError("without keys only workers of this machine are asked: start both with the same --keys")
        shown_host = f"[{host}]" if address.version == 6 else host
        return f"{TCP}{shown_host}:{port}"

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
    role: ClassVar[str] = "prefill"

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
    """A prompt whose KV the worker `engine` keeps, in its `blocks`, for whoever claims it at its `endpoint`."""

    engine: str
    endpoint: str
    transfer_id: str
    blocks: list[int]
    secret: str | None = field(default=None, repr=False)
    role: ClassVar[str] = "decode"

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
            "peer_blocks": self.blocks,
        }

    def claims(self, request: Request) -> bool:
        """Return whether the prompt's KV is to come from a worker of another proxy."""
        return request.attempts.number <= 0

    def told(self, request: Request) -> None:
        return None


RemoteKV = KeepPrompt | KeptPrompt


def transfer_of(request: Request) -> str:
    return f"{request.id}.{request.attempts.number}"


def address_of(endpoint: str) -> tuple[str | None, int | None]:
    """Return the host and port of an endpoint; None twice for a socket file."""
    if not endpoint.startswith(TCP):
        return None, None
    host, _, port = endpoint.removeprefix(TCP).rpartition(":")
    return host.strip("[]"), int(port)


def readable(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return those fields that a claim reads, without values that are too long to be right. Every item of a body is
    looked at here, in the thread that parses it, and none in the event loop."""
    values = {name: told.get(name) for name in (ENGINE, HOST, PORT, REQUEST, SIGNATURE)}
    short = {
        name: value
        for name, value in values.items()
        if isinstance(value, int) or (isinstance(value, str) and len(value) <= LONGEST)
    }
    return short | {BLOCKS: blocks_of(told)}


def blocks_of(told: Mapping[str, Any]) -> list[int] | None:
    """Return the numbers of the blocks, as one list or as that of the one group of layers; None if they are none."""
    value = told.get(BLOCKS)
    groups = value if isinstance(value, list) and value and isinstance(value[0], list) else [value]
    blocks = groups[0]
    if len(groups) != 1 or not isinstance(blocks, list) or len(blocks) > MOST_TOLD:
        return None
    return blocks if all(is_block(one) for one in blocks) else None


def is_block(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number < MOST_BLOCKS


def text_of(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST or not value.isascii() or not value.isprintable():
        raise ValueError(f"{name} is missing, or no short text")
    return value


def signature_of(fields: Mapping[str, Any]) -> str:
    try:
        return text_of(fields, SIGNATURE)
    except ValueError:
        return ""
