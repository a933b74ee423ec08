# SPDX-License-Identifier: Apache-2.0
"""The work of a request that is answered with tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pontil.runtime.accounting.counts import DECODE, LEASED, PREFILL
from pontil.runtime.proxy.requests.lease_wish import LeaseWish
from pontil.runtime.proxy.requests.prompt_reuse import PromptParts
from pontil.runtime.proxy.requests.remote_kv import RemoteKV
from pontil.runtime.proxy.requests.request import Request, Work
from pontil.runtime.proxy.requests.ticket import Ticket
from pontil.runtime.proxy.routing.prompt_prefix import PromptPrefix
from pontil.runtime.wire.messages import Submit

# The roles of the workers that compute a prompt for a lease, where there are any of them.
LEASING_ROLES = ("prefill", "mixed")
NOTHING_MORE: Mapping[str, Any] = {}


@dataclass(slots=True, eq=False)
class PromptWork(Work):
    """A prompt that may be found in caches, for which `prefix` was computed. A lease on it may be wished for."""

    prefix: PromptPrefix | None = field(default=None, kw_only=True)
    wish: LeaseWish | None = field(default=None, kw_only=True)

    @property
    def contents(self) -> list[int] | None:
        """The prompt as the keys of its blocks are made of it; None where nobody can say what stands in it, or no
        worker would use what it has cached."""
        return self.prompt

    @property
    def is_moved(self) -> bool:
        """True if a router of others has its KV moved."""
        return False

    @property
    def stated(self) -> Mapping[str, Any]:
        """The content of its prompt beside ids, as a receipt states it. Ask where `contents` are known."""
        return NOTHING_MORE

    def as_begun(self, begun: "Generation", stated: Mapping[str, Any]) -> "PromptWork":
        """Return the work with which a proxy goes on with what was `begun`, of which this was read again, and in whose
        prompt this was `stated`. Raises RequestError for another prompt."""
        return begun

    def wished(self, request: Request, messages: Sequence[Submit]) -> Sequence[Submit]:
        """Return messages that start an attempt with the lease that is asked for, if one is."""
        if self.wish is None or not self.wish.asks:
            return messages
        # Of two attempts that are granted it, the later one has it.
        lease = {**self.wish.told(), "moves": request.attempts.number}
        return [message if message.phase == DECODE else replace(message, lease=lease) for message in messages]

    @property
    def alone(self) -> Sequence[str] | None:
        """The roles that hold leases for a prompt without an answer."""
        return LEASING_ROLES if self.wish is not None and self.wish.must else None

    def suits(self, worker: str) -> bool:
        return self.wish is None or not self.wish.must or self.wish.has_room(worker)

    @property
    def ends_as(self) -> str | None:
        return LEASED if self.wish is not None and self.wish.must and self.wish.granted else None

    def opened(self, request: Request) -> None:
        if self.wish is not None and self.wish.asks:
            self.wish.open(request.entry)
            # The answer's head says what becomes of it.
            request.mailbox.held = True

    def ended(self, request: Request) -> None:
        if self.wish is not None:
            self.wish.close()

    @property
    def headers(self) -> Mapping[str, str]:
        return {} if self.wish is None or self.wish.must else self.wish.headers

    def created(self, cached_tokens: int) -> tuple[int, int]:
        """Return how many tokens of the prompt were computed for a new lease, and the seconds of that."""
        if self.wish is None or not self.wish.granted:
            return 0, 0
        return max(0, self.wish.made - cached_tokens), self.wish.seconds

    def prefix_keys(self, block_size: int, ticket: Ticket) -> PromptPrefix | None:
        # All of a prompt is computed whose logprobs are wanted.
        if not self.prompt or self.params.prompt_logprobs is not None:
            return None
        if self.prefix is None or self.prefix.block_size != block_size:
            contents = self.contents
            if contents is None:
                return None
            self.prefix = PromptPrefix(contents, ticket.cache_salt, block_size, ticket.adapted(self.prompt))
        return self.prefix


@dataclass(slots=True, eq=False)
class Generation(PromptWork):
    """A prompt to be continued, by the `further` model of this name, or (None) the first one. `parts` are what it was
    made of. With `remote_kv` its KV is kept for a worker of another proxy, or comes from one."""

    remote_kv: RemoteKV | None = None
    parts: PromptParts | None = None
    further: str | None = None

    @property
    def group(self) -> str | None:
        return self.further

    @property
    def model(self) -> str | None:
        return self.further

    @property
    def is_moved(self) -> bool:
        return self.remote_kv is not None

    def messages(self, request: Request, sender: str, secret: str | None, deadline: float | None) -> Sequence[Submit]:
        kv_fields = {} if self.remote_kv is None else self.remote_kv.submitted(request)
        return self.wished(request, submits(request, sender, secret, deadline, kv_fields))

    @property
    def alone(self) -> Sequence[str] | None:
        """One role where another router chooses the other worker."""
        return super(Generation, self).alone if self.remote_kv is None else (self.remote_kv.role,)

    @property
    def may_pause(self) -> bool:
        return self.remote_kv is None

    def load(self, request: Request) -> int:
        """Return the prompt tokens that keep a worker busy: none where their KV comes from elsewhere."""
        return 0 if self.remote_kv is not None and self.remote_kv.claims(request) else len(self.prompt)

    def told(self, request: Request) -> dict[str, Any] | None:
        return None if self.remote_kv is None else self.remote_kv.told(request)


def submits(
    request: Request,
    sender: str,
    transfer_secret: str | None = None,
    deadline: float | None = None,
    alone: Mapping[str, Any] = NOTHING_MORE,
) -> list[Submit]:
    """Return the messages that start an attempt at tokens: one per worker, the decode worker's first, as it has to
    make room. The secret is for the transfer between the two; the first token is of use for `deadline` seconds.
    A worker that is `alone` is told this besides."""
    attempts, route = request.attempts, request.attempts.route
    assert route is not None, "begin the attempt first"
    adapter, adapted = request.ticket.adapter, request.ticket.adapted(request.prompt)
    common: dict[str, Any] = {
        "sender": sender,
        "request_id": request.id,
        "attempt": attempts.number,
        "prompt": request.prompt,
        "sampling": request.params.to_wire(),
        "cache_salt": request.ticket.cache_salt,
        "adapter": adapted.digest,
        "adapter_start": adapted.start,
        "adapter_directory": adapter.directory if adapter is not None and adapted.digest else "",
        "priority": request.share.place(request.ticket.place),
        "deadline": deadline,
        "traceparent": None if request.trace is None else request.trace.traceparent,
        "caller": request.share.caller,
        "weight": request.share.weight,
    }
    if attempts.number > 0:
        common["delivered"] = [answer.ids for answer in request.answers]
        common["choices"] = [choice.number for choice in request.unended]
        if request.prompt_logprobs:
            common["sampling"]["prompt_logprobs"] = None
    if not route.is_pair:
        return [Submit(receiver=route.decode.incarnation, **(common | dict(alone)))]
    prefill, decode = route.prefill, route.decode
    common |= {"transfer_id": f"{request.id}.{attempts.number}", "transfer_secret": transfer_secret}
    return [
        Submit(
            receiver=decode.incarnation,
            phase=DECODE,
            peer=prefill.incarnation,
            peer_endpoint=prefill.peer_endpoint,
            **common,
        ),
        Submit(receiver=prefill.incarnation, phase=PREFILL, peer=decode.incarnation, **common),
    ]
