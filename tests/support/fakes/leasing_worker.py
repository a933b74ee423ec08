# SPDX-License-Identifier: Apache-2.0
"""A scripted worker that keeps leases: its book is a dictionary, and its memory has room for so many bytes."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import jsonschema
from scripted_site import HttpAnswer, ScriptedSite
from scripted_worker import ScriptedWorker, eventually, proper

from pontil.http.prefixes.schema import PREFIX
from pontil.runtime.cache.adaptation import Adaptation
from pontil.runtime.cache.leases.lease import LeasedPrompt
from pontil.runtime.cache.prefix import full_keys
from pontil.runtime.wire.lease_messages import DRAINS, EXTEND, LET_GO, MOVED, REFUND, REFUSED, RELEASE, RESUME
from pontil.runtime.wire.messages import (
    Failed,
    LeaseOrder,
    LeaseState,
    LeasesTold,
    Message,
    RoleChange,
    Submit,
    Welcome,
)

BLOCK, BLOCK_BYTES = 16, 100


@dataclass
class KeptLease:
    """A lease that a worker keeps."""

    state: LeaseState
    began: float


class LeasingWorker(ScriptedWorker):
    """Worker that grants leases while there is room, and obeys orders. `orders` are those that it got; `remembers` says
    whether it can resume what an earlier process held, and `pulls` whether it can have a prompt of another worker."""

    def ready(self, budget: int) -> "LeasingWorker":
        self.script, self.leases, self.orders = leasing, dict[str, KeptLease](), list[LeaseOrder]()
        self.budget, self.remembers, self.pulls, self.drains_since = budget, True, True, DRAINS
        self.last_prompt: list[int] = []
        self.show_room()
        return self

    def show_room(self) -> None:
        free = self.budget - sum(kept.state.size for kept in self.leases.values())
        self.gauges = {
            "lease_block_bytes": BLOCK_BYTES, "lease_budget_bytes": self.budget, "lease_free_bytes": max(0, free),
        }  # fmt: skip

    def grant(self, submit: Submit) -> LeaseState:
        wish = submit.lease or {}
        blocks = wish["tokens"] // BLOCK
        size = blocks * BLOCK_BYTES
        about = self.incarnation, self.proxy, wish["id"], wish["owner"], self.proxy
        if size > self.gauges["lease_free_bytes"]:  # type: ignore[index]
            return LeaseState(*about, REFUSED, 0, 0, 0, 0.0, "there is no room")
        adapted = Adaptation(submit.adapter, submit.adapter_start)
        keys = b"".join(islice(full_keys(submit.prompt, submit.cache_salt, BLOCK, adapted), blocks))
        age, tokens = wish.get("age", 0.0), submit.prompt[: blocks * BLOCK]
        prompt = LeasedPrompt.of(tokens, submit.cache_salt, adapted, submit.adapter_directory)
        told, start = (*prompt.fields, wish.get("moves", 0), prompt.directory), prompt.adapted.start
        state = LeaseState(
            *about, "held", blocks * BLOCK, size, wish["seconds"], age, None, keys, *told, adapter_start=start
        )
        self.leases[state.lease_id] = KeptLease(state, time.monotonic() - age)
        self.show_room()
        return state

    def hear(self, message: Message) -> None:
        super().hear(message)
        if isinstance(message, LeaseOrder):
            self.orders.append(message)
            self.obey(message)
        elif isinstance(message, Welcome):
            for kept in self.leases.values():
                self.say(self.now(kept))
            self.say(LeasesTold(self.incarnation, self.proxy, list(self.leases)))

    def obey(self, order: LeaseOrder) -> None:
        kept = self.leases.get(order.lease_id)
        if order.action == RESUME and kept is None:
            about = self.incarnation, self.proxy, order.lease_id, order.owner, self.proxy
            if not self.remembers:
                self.say(LeaseState(*about, REFUSED, 0, 0, 0, 0.0, "only 0 of 32 tokens are here"))
                return
            blocks = len(order.keys) // 16
            size = blocks * BLOCK_BYTES
            told = order.keys, order.prompt, order.salt, order.adapter, order.moves
            state = LeaseState(*about, "held", blocks * BLOCK, size, order.seconds, order.age, None, *told)
            state = replace(state, adapter_directory=order.adapter_directory, adapter_start=order.adapter_start)
            self.leases[order.lease_id] = kept = KeptLease(state, time.monotonic() - order.age)
            self.say(state)
        elif kept is not None and order.action == EXTEND:
            kept.state = replace(kept.state, seconds=max(kept.state.seconds, order.seconds))
            self.say(self.now(kept))
        elif kept is not None and order.action == RELEASE:
            del self.leases[order.lease_id]
            self.say(replace(self.now(kept), state="released", keys=b"", prompt=b""))
        elif kept is not None and order.action == REFUND:
            self.refund(order.lease_id, self.drains_since)
        elif kept is not None and order.action == LET_GO and kept.state.moves < order.moves:
            self.refund(order.lease_id, MOVED)
        self.show_room()

    def drain(self, since: str = DRAINS) -> None:
        self.drains_since = since
        self.say(RoleChange(self.incarnation, self.proxy, self.role, draining=True))

    def refund(self, name: str, reason: str) -> None:
        kept = self.leases.pop(name)
        self.say(replace(self.now(kept), state="refunded", reason=reason, keys=b"", prompt=b""))

    def now(self, kept: KeptLease) -> LeaseState:
        age = time.monotonic() - kept.began
        return replace(kept.state, sender=self.incarnation, receiver=self.proxy, age=age)


def leasing(worker: ScriptedWorker, submit: Submit) -> Iterator[Message]:
    assert isinstance(worker, LeasingWorker)
    worker.last_prompt = submit.prompt
    if submit.phase == "decode" and not worker.pulls:
        yield Failed(worker.incarnation, worker.proxy, submit.request_id, submit.attempt, "the handoff failed", 503)
        return
    if submit.lease is not None:
        yield worker.grant(submit)
    yield from proper(worker, submit)


def leasing_worker(site: ScriptedSite, name: str = "mixed:0", budget: int = 1000, **hello: Any) -> LeasingWorker:
    """Start a worker, and wait until the proxy knows what room it has."""
    answer = site.tokenizer.encode("Hello", False)
    role = name.split(":")[0]
    worker = LeasingWorker(site.endpoint, name, site.tokenizer, answer, role=role, **hello).ready(budget)
    site.workers.append(worker)
    worker.start()
    workers = site.proxy.registry.workers

    def shown() -> bool:
        known = workers.get(worker.incarnation)
        return known is not None and bool(known.gauges)

    eventually(shown, "the room for leases")
    return worker


def checked(answer: HttpAnswer) -> dict[str, Any]:
    """Return the lease that an answer tells of, as the schema has it."""
    assert answer.status == 200, answer.body
    found: dict[str, Any] = answer.json
    jsonschema.validate(found, PREFIX)
    return found
