# SPDX-License-Identifier: Apache-2.0
"""Messages with wrong fields at a real pair of workers: both live, other requests have their tokens, all blocks
return."""

import random
import time
from dataclasses import dataclass

import pytest
from effort import examples
from message_fuzz import Interceptor, mutated
from workers import PromptWorker, ScriptedProxy, drawn, everyone_clean, greedy, prompt

from pontil.runtime.wire.messages import (
    Abandon,
    Begin,
    Cancel,
    ChunkReady,
    Fetched,
    Greet,
    Greeting,
    Handoff,
    LeaseOrder,
    Message,
    PrefixRequest,
    Renew,
    StillHere,
    Submit,
    Welcome,
    Withdrawn,
)

# Kinds that a handoff sends by itself; the others are sent to a worker in the middle of one.
FLOWING = (Submit, Greet, Greeting, Begin, ChunkReady, Handoff, Fetched)
INJECTED = (Cancel, Welcome, StillHere, PrefixRequest, LeaseOrder, Withdrawn, Renew, Abandon, Begin, Fetched)
LATER = 1e4


@dataclass
class FuzzedPair:
    proxy: ScriptedProxy
    prefill: PromptWorker
    decode: PromptWorker
    chance: random.Random
    interceptor: Interceptor | None = None

    def __post_init__(self) -> None:
        for worker in (self.prefill, self.decode):
            for source in (worker.decode.peers, *worker.sockets.opened):
                self.intercept(source)

    def intercept(self, source: object) -> None:
        receive = source.receive_all  # type: ignore[attr-defined]

        def changed() -> list[Message]:
            return [one for message in receive() for one in (self.interceptor or (lambda other: [other]))(message)]

        source.receive_all = changed  # type: ignore[attr-defined]

    def case(self, kind: type[Message], name: str, injected: bool) -> None:
        """Serve a request whose messages are wrong beside others that have to be right."""
        if kind in (Greet, Greeting):
            self.decode.decode.peers.hang_up(self.prefill.incarnation)
        chance = self.chance
        # With Submit the other half is right, or is left alone.
        # All requests of a pair wait for one handshake, so that one that is lost is lost to all.
        lossy = kind not in (Greet, Greeting)
        self.interceptor = None if injected else Interceptor(kind, chance.choice([0, 0, 0, 1]), chance, lossy)
        params = chance.choice([drawn(6), greedy(4, logprobs=1), drawn(5, n=3)])
        self.proxy.submit_pair(self.prefill, self.decode, name, prompt(chance.choice([9, 60, 150])), params)
        for _ in range(chance.randrange(1, 12)):
            self.proxy.turn()
        if injected:
            self.inject(kind, name)
        for _ in range(8):
            self.proxy.turn()
        self.interceptor = None
        self.others(name)
        self.settle()

    def inject(self, kind: type[Message], name: str) -> None:
        now, transfer = time.monotonic(), f"t-{name}.0"
        prefill, decode, proxy = self.prefill, self.decode, self.proxy.incarnation
        sent = prefill.prefill.kv_sender.open.get(transfer)
        epoch = 0 if sent is None else sent.epoch
        to_prefill, to_decode = (decode.incarnation, prefill.incarnation), (prefill.incarnation, decode.incarnation)
        made: dict[type[Message], Message] = {
            Cancel: Cancel(proxy, decode.incarnation, name, 0),
            Welcome: Welcome(proxy, decode.incarnation, True, "decode", False, True, True),
            StillHere: StillHere(proxy, decode.incarnation),
            PrefixRequest: PrefixRequest(proxy, decode.incarnation),
            LeaseOrder: LeaseOrder(proxy, decode.incarnation, "prefix-1", "resume", 9, "", bytes(32), 0.5),
            Withdrawn: Withdrawn(*to_decode, transfer, False, "no"),
            Renew: Renew(*to_prefill, transfer, epoch),
            Abandon: Abandon(*to_prefill, transfer, "no"),
            Begin: Begin(*to_prefill, transfer, name, 0),
            Fetched: Fetched(*to_prefill, transfer, epoch),
        }
        message = mutated(made[kind], self.chance)
        if kind in (Cancel, Welcome, StillHere, PrefixRequest, LeaseOrder):
            decode.hear(message, now)
        elif kind is Withdrawn:
            decode.decode.take(message, now)
        else:
            prefill.prefill.take(message, now)

    def others(self, name: str) -> None:
        """Both workers still answer other requests, together and alone, with the same tokens."""
        whole, split = f"{name}-whole", f"{name}-split"
        self.proxy.submit(self.decode, whole, prompt(70), drawn(4))
        self.proxy.submit_pair(self.prefill, self.decode, split, prompt(70), drawn(4))
        answers = self.proxy.finish(whole, split)
        assert not answers[0].failures + answers[1].failures, "another request suffered"
        assert answers[0].ids == answers[1].ids and len(answers[0].ids) == 4

    def settle(self) -> None:
        """End what is left of the wrong request, as the proxy and time would, and see that nothing stays."""
        for worker in self.proxy.workers:
            worker.worker.drop(None, None, time.monotonic())
            worker.prefill.tick(time.monotonic() + LATER)
        everyone_clean(self.proxy)


@pytest.fixture
def fuzzed(proxy: ScriptedProxy, pair: tuple[PromptWorker, PromptWorker]) -> FuzzedPair:
    return FuzzedPair(proxy, *pair, random.Random(7))


@pytest.mark.parametrize("kind", FLOWING, ids=lambda kind: kind.__name__)
def test_a_message_of_a_handoff_with_wrong_fields_fails_its_own_request_only(
    fuzzed: FuzzedPair, kind: type[Message]
) -> None:
    for number in range(examples(6, 1500)):
        fuzzed.case(kind, f"r{number}", injected=False)


@pytest.mark.parametrize("kind", INJECTED, ids=lambda kind: kind.__name__)
def test_a_message_with_wrong_fields_out_of_turn_fails_its_own_request_only(
    fuzzed: FuzzedPair, kind: type[Message]
) -> None:
    for number in range(examples(4, 500)):
        fuzzed.case(kind, f"r{number}", injected=True)
