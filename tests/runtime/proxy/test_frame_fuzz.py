# SPDX-License-Identifier: Apache-2.0
"""Messages of workers with wrong fields at a real proxy: no handler raises, other requests have their answers, and
what operators read stays readable."""

import json
import os
import random
from collections.abc import Callable

import pytest
from effort import examples
from message_fuzz import mutated
from proxy_configs import bare_config
from stage_site import StageSite
from submitting import submit
from virtual_site import Clock, VirtualProxy, VirtualWorker

from pontil.runtime.proxy.proxy import Proxy
from pontil.runtime.proxy.requests.answer import Finished
from pontil.runtime.proxy.requests.request import Request
from pontil.runtime.proxy.requests.ticket import Ticket
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.stages.runs.entry import runs_of
from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.wire.messages import (
    SCHEMA,
    AttemptTimes,
    Embedding,
    Failed,
    Goodbye,
    Heartbeat,
    Hello,
    LeaseState,
    LeasesTold,
    Message,
    NodeOutput,
    PassDone,
    PrefixDelta,
    Progress,
    RoleChange,
    Starved,
    Step,
    Tokens,
)

PROMPT = [5, 6, 7, 8]
PARAMS = SamplingParams(max_tokens=6, seed=1, temperature=0.0, ignore_eos=True)
Valid = Callable[[str, str, Request], Message]

NUMBERS = {"prefill_seconds": 1, "decode_seconds": 2, "generated_before": 3, "transfers_complete": 4}
ABOUT_TOKENS: dict[str, Valid] = {
    "hello": lambda sender, proxy, request: Hello(
        sender, SCHEMA, "new:0", "mixed", os.getpid(), "cpu", "m", "m", "k", "ipc:///new", 16, 64, 4, 512, 256, "torch",
        "float32", False, "g", "auto", None, None, "blue", "1",
    ),
    "heartbeat": lambda sender, proxy, request: Heartbeat(
        sender, proxy, 1, 2, 30, 4, NUMBERS, {"kv_tier_blocks": 3, "stream_free_blocks": 1},
        {"proxies": 1, "in_flight": 2, "taken": 3, "uncomputed": 4},
    ),
    "goodbye": lambda sender, proxy, request: Goodbye(sender, proxy, False),
    "role": lambda sender, proxy, request: RoleChange(sender, proxy, "decode", False),
    "prefixes": lambda sender, proxy, request: PrefixDelta(sender, proxy, 0, b"12345678abcdefgh", b"87654321"),
    "lease": lambda sender, proxy, request: LeaseState(
        sender, proxy, "prefix-1", "", proxy, "held", 16, 1 << 20, 300, 0.5, None, bytes(32)
    ),
    "refunded": lambda sender, proxy, request: LeaseState(
        sender, proxy, "prefix-1", "", proxy, "refunded", 16, 1 << 20, 300, 0.5, "it drains"
    ),
    "leases": lambda sender, proxy, request: LeasesTold(sender, proxy, ["prefix-1"]),
    "tokens": lambda sender, proxy, request: Tokens(
        sender, proxy, request.id, request.attempts.number, 0, [10, 11], 0, None, None, None, 4, 0,
        [[[10, -0.5, 1]], [[11, -0.5, 1]]], None, 0.1, 4, 2, 1, 0, 10, 0.1, "no",
    ),
    "end": lambda sender, proxy, request: Tokens(
        sender, proxy, request.id, request.attempts.number, 0, [10, 11], 0, "stop", "x", 2, 4, 0, queue_seconds=0.1,
        computed_tokens=4,
    ),
    "step": lambda sender, proxy, request: Step(
        sender, proxy, [request.id, request.id],
        [[request.attempts.number, 0, 0, 4, 0, 10], [request.attempts.number, 0, 1, 4, 0, 10]], [b"", b"\0" * 8],
    ),
    "progress": lambda sender, proxy, request: Progress(sender, proxy, request.id, request.attempts.number, 2, 0),
    "failed": lambda sender, proxy, request: Failed(sender, proxy, request.id, request.attempts.number, "why", 503),
    "times": lambda sender, proxy, request: AttemptTimes(
        sender, proxy, request.id, request.attempts.number, 1.0, 0.1, [0.2, 0.3, 4.0], [0.2, 0.3, 4.0, 9.0], [0.3, 0.4],
        [0.5], 0.6, 0.7,
    ),
    "embedding": lambda sender, proxy, request: Embedding(
        sender, proxy, request.id, request.attempts.number, b"\0\0\x80\x3f", 4, 4, 0.1
    ),
}  # fmt: skip


def operators_can_read(proxy: Proxy) -> None:
    """Check the pages, and the timelines that may have changed since the last call: earlier ones were read then."""
    assert proxy.metrics.threads.counts() == {}, "a handler raised"
    proxy.metrics.render()
    proxy.metrics.render_openmetrics()
    json.dumps(proxy.topology(), allow_nan=False)
    for name in [*proxy.timelines.ended, *proxy.timelines.open][-4:]:
        json.dumps(proxy.timelines.shown(name), allow_nan=False)
    proxy.tick()


@pytest.mark.parametrize("kind", ABOUT_TOKENS)
def test_a_message_with_wrong_fields_ends_nothing_else(tokenizer: Tokenizer, kind: str) -> None:
    chance, clock = random.Random(3), Clock()
    config = bare_config(model="m", first_byte_timeout=20.0)
    site = VirtualProxy(config, tokenizer, clock)
    workers = [VirtualWorker(site, f"mixed:{number}", 16, 400.0, 0.01) for number in range(2)]
    for number in range(examples(8, 1000)):
        wrong = submit(site, PROMPT * 20, PARAMS).requests[0]
        clock.run_until(clock.now + 0.05)
        sender = next(iter(wrong.attempts.phases), workers[0].name)
        fresh = f"new-{number}" if kind == "hello" else sender
        for _ in range(chance.choice([1, 1, 2])):
            site.router.on_messages([mutated(ABOUT_TOKENS[kind](fresh, site.incarnation, wrong), chance)])
        operators_can_read(site)
        # A new worker answers nothing: it is gone before it is given a request.
        known = list(site.registry.workers.values())
        site.lose(site.registry.remove([one for one in known if one.hello.sender.startswith("new")]), "died", "died")
        for worker in workers:
            site.registry.turn(site.registry.workers[worker.name], "mixed", False)
        right = submit(site, PROMPT, PARAMS).requests[0]
        clock.run_until(clock.now + 40.0)
        assert isinstance(right.mailbox.end, Finished), "another request suffered"
        assert wrong.mailbox.end is not None, "it has an end"
    operators_can_read(site)


RUN_PROMPT = [5, 9, 4]
ABOUT_RUNS: dict[str, Valid] = {
    "output": lambda sender, proxy, request: NodeOutput(
        sender, proxy, request.id, request.attempts.number, 0, "audio", b"\0\0" * 3, False, 8000, 1, 0.1
    ),
    "pass": lambda sender, proxy, request: PassDone(
        sender, proxy, request.id, request.attempts.number, "talker", "talker_decode", {"talker/wav/codes": 3},
        {"talker/wav/codes": 3}, {"thinker/talker/states": 2}, {"wav": "code2wav_chunk"}, False,
    ),
    "starved": lambda sender, proxy, request: Starved(
        sender, proxy, request.id, request.attempts.number, "talker/wav/codes", 2, "talker:0"
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", ABOUT_RUNS)
def test_a_message_of_a_stage_with_wrong_fields_ends_no_other_run(tokenizer: Tokenizer, kind: str) -> None:
    chance = random.Random(5)
    for _ in range(examples(15, 500)):
        site = StageSite(tokenizer, max_attempts=20)
        site.join("thinker:0", "talker:0", "wav:0")
        params = SamplingParams(max_tokens=6, seed=1, temperature=0.0, ignore_eos=True)
        wrong, right = (runs_of(site).submit(Ticket(), RUN_PROMPT, params) for _ in range(2))
        for _ in range(chance.randrange(2, 14)):
            site.step()
        if not runs_of(site).conductor.runs:
            continue
        run = next(iter(runs_of(site).conductor.runs.values()))
        node = "talker" if kind == "pass" else "wav"
        asked = run.requests.get(node, run.first)
        site.router.on_messages([mutated(ABOUT_RUNS[kind](f"{node}:0", site.incarnation, asked), chance)])
        operators_can_read(site)
        for _ in range(400):
            site.step()
        site.run_until_idle()
        assert isinstance(right.end, Finished) and wrong.end is not None
        assert site.metrics.threads.counts() == {}
