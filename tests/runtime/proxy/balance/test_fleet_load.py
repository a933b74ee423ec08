# SPDX-License-Identifier: Apache-2.0
"""The load as a proxy sees it by heartbeats and requests, and the changes of roles that it asks for."""

from dataclasses import replace
from typing import Any

import pytest

from pontil.runtime.config.proxy_config import ProxyConfig
from pontil.runtime.foundation.fair_share import EVERYBODY
from pontil.runtime.proxy.balance.fleet_load import AskedWork, QueuedWork
from pontil.runtime.proxy.balance.load_watch import LoadWatch
from pontil.runtime.proxy.fleet.operator_changes import OperatorChanges
from pontil.runtime.proxy.fleet.registry import Registry
from pontil.runtime.wire.messages import SCHEMA, Heartbeat, Hello, RoleChange

HELLO = Hello(
    "decode:0",
    SCHEMA,
    "decode:0",
    "decode",
    10,
    "cpu",
    "tiny",
    "model",
    "layout",
    "ipc:///e",
    16,
    1000,
    16,
    2048,
    256,
)
NAMES = ("prefill:0", "prefill:1", "decode:0", "decode:1")


class LoadSite:
    """Four workers whose steps take 10 ms, 1 ms a row and 0.5 ms a prompt token, as one proxy knows them."""

    def __init__(self, **options: Any) -> None:
        self.now = 0.0
        self.registry = Registry(ttl=1e6)
        for number, name in enumerate(NAMES):
            hello = replace(HELLO, sender=name, name=name, role=name.partition(":")[0], pid=10 + number)
            assert self.registry.hello(hello, 0.0) is None
        self.changes = OperatorChanges(self.registry, self.clock)
        self.asked_changes = list[tuple[str, str]]()
        self.changes.ask = self.take
        self.queue = QueuedWork(0, 0, None)
        # No decode worker computes prompts.
        options = {"disagg": "always"} | options
        config = ProxyConfig(model="m", served_model_name="m", control="c", version="v", **options)
        self.asked = AskedWork()
        self.watch = LoadWatch(config, self.asked, lambda: self.queue, self.changes, self.clock)
        self.counters = {
            name: dict.fromkeys(("steps", "step_microseconds", "engine_tokens", "engine_prompt_tokens"), 0)
            for name in NAMES
        }

    def clock(self) -> float:
        return self.now

    def take(self, number: int, request: dict[str, Any]) -> None:
        (name,), role = request["names"], request["role"]
        self.asked_changes.append((name, role))
        self.registry.change_role(RoleChange(name, "proxy", role))
        self.changes.hear({"number": number, "end": "done"})

    def beat(self, name: str, rows: int, tokens: int, seconds: float = 1.0) -> None:
        """Have a worker compute for a second: steps of so many rows, or of 256 tokens of so many in all."""
        each = 0.01 + 0.001 * rows if rows else 0.01 + 256 * 0.0005
        steps = round(seconds / each) if rows else -(-tokens // 256)
        done = self.counters[name]
        for key, value in zip(done, (steps, round(steps * each * 1e6), steps * rows, tokens), strict=True):
            done[key] += value
        self.registry.heartbeat(Heartbeat(name, "proxy", rows, 0, 900, 1, dict(done)))
        self.registry.workers[name].seat(EVERYBODY, rows - self.registry.workers[name].taken)

    def second(self, requests: int, prompt: int, answer: int, rows: int) -> None:
        """Let a second pass: so many requests are sent, and workers do what they can of that."""
        self.now += 1.0
        rows_are = [
            {"name": one, "role": "decode", "pid": 10 + number, "state": "READY", "device": "cpu"}
            for number, one in enumerate(NAMES)
        ]
        self.registry.show(rows_are)
        self.changes.hear_table()
        for _ in range(requests):
            self.asked.add(self.now, prompt, prompt, 1, answer)
        for name, worker in self.registry.workers.items():
            computes = worker.role == "prefill"
            self.beat(name, 0 if computes else rows, min(1700, requests * prompt) if computes else 0)
        self.watch.tick()

    @property
    def roles(self) -> list[str]:
        return [worker.role for worker in self.registry.workers.values()]


def test_needs_are_those_of_the_load() -> None:
    site = LoadSite(tpot_limit=40.0)
    assert site.watch.load.wanted() == {"prefill": 2, "decode": 2}
    for rows in (2, 4, 8, 4) * 12:
        site.second(2, 512, 100, rows)
    needs = site.watch.load.needs
    assert needs is not None
    # 1024 tokens a second, of which a worker computes one in 0.54 ms; 200 tokens a second, in steps of 0.85 of 16 rows.
    assert needs.prompts == pytest.approx(1024 * (0.0005 + 0.01 / 256), rel=0.15)
    assert needs.answers == pytest.approx(max(200, 2 * 340) * 0.0236 / 13.6, rel=0.25)


def test_roles_follow_the_load_and_back() -> None:
    site = LoadSite(balance="auto", tpot_limit=40.0)
    for rows in (1, 2) * 15:
        site.second(8, 512, 4, rows)
    assert site.roles.count("prefill") == 3 and len(site.asked_changes) == 1
    for _ in range(60):
        site.second(12, 16, 128, 16)
    assert site.roles.count("decode") == 3 and {role for _, role in site.asked_changes[1:]} == {"decode"}


@pytest.mark.parametrize("options", [{}, {"balance": "auto", "number": 1, "proxies": 2}])
def test_nobody_else_changes_roles(options: dict[str, Any]) -> None:
    """Neither a launch that was not told to, nor any proxy but the first."""
    site = LoadSite(**options)
    for _ in range(30):
        site.second(8, 512, 4, 1)
    assert site.asked_changes == [] and site.watch.load.wanted()["prefill"] > 2


def test_an_operators_change_goes_first() -> None:
    site = LoadSite(balance="auto")
    site.changes.ask = lambda number, request: None
    site.second(0, 1, 1, 1)
    site.changes.begin("drain", "decode:1")
    site.changes.ask = site.take
    for _ in range(15):
        site.second(8, 512, 4, 1)
    assert site.asked_changes == []


def test_what_cannot_be_asked_for_is_left(caplog: pytest.LogCaptureFixture) -> None:
    site = LoadSite(balance="auto")
    site.changes.ask = None
    for _ in range(15):
        site.second(8, 512, 4, 1)
    assert site.roles.count("prefill") == 2


def test_what_waits_here_needs_workers_too() -> None:
    site = LoadSite()
    for _ in range(20):
        site.second(1, 256, 16, 4)
    before = site.watch.load.needs
    site.queue = QueuedWork(40_000, 50, 100.0)
    site.second(1, 256, 16, 4)
    after = site.watch.load.needs
    assert before is not None and after is not None
    assert after.prompts > before.prompts + 2 and after.answers > before.answers + 0.5


def test_longer_answers_are_expected_before_the_first_one_ends() -> None:
    """Answers of 10 tokens, and then so many that run: none ends, and more is drawn."""
    site = LoadSite()
    for second in range(40):
        site.queue = QueuedWork(0, 0, 10.0, 4 * second)
        site.second(4, 256, 1000, 2)
    assert site.asked.expected == pytest.approx(2 * 2 * 83 / 4, rel=0.1), "what is drawn for each that ended"
    for _ in range(20):
        site.second(4, 256, 1000, 8)
    assert site.asked.expected > 200


def test_a_row_is_taken_for_two_prompt_tokens_until_steps_tell() -> None:
    site = LoadSite()
    for _ in range(10):
        site.second(2, 512, 100, 1)
    base, row = site.watch.load.costs.line
    assert row == pytest.approx(2 * 0.0005, rel=0.1) and base + row == pytest.approx(0.011, rel=0.01)


def test_a_long_prompt_is_no_step_that_decodes() -> None:
    """A mixed worker computes a prompt's chunks for seconds before its first token says so."""
    site = LoadSite()
    for rows in (2, 4, 8, 4) * 5:
        site.second(0, 1, 1, rows)
    base, row = site.watch.load.costs.line
    worker = site.registry.workers["decode:0"]
    worker.uncomputed = 4096
    for _ in range(5):
        site.now += 1.0
        site.beat("decode:0", 0, 0)
        site.counters["decode:0"]["steps"] += 6
        site.counters["decode:0"]["step_microseconds"] += 1_000_000
        site.counters["decode:0"]["engine_tokens"] += 24
        site.watch.tick()
    assert site.watch.load.costs.line == pytest.approx((base, row))
