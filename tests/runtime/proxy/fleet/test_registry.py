# SPDX-License-Identifier: Apache-2.0
"""The registry of workers: compatibility, expiry, the supervisor's table, counters that never count twice."""

from dataclasses import replace
from typing import Any

import pytest

from pontil.runtime.proxy.answer_frames import MessageRouter
from pontil.runtime.proxy.fleet.registry import FRESH, REFUSED, WATCHED_TTL, Registry
from pontil.runtime.proxy.metrics.all_series import Metrics
from pontil.runtime.proxy.requests.stream import MessageTurn
from pontil.runtime.proxy.routing.policy import Route, plan
from pontil.runtime.wire.messages import SCHEMA, Heartbeat, Hello, RoleChange

ONE = Hello(
    "i1", SCHEMA, "decode:0", "decode", 11, "cpu", "tiny", "model", "layout", "ipc:///e", 16, 10, 4, 512, 256,
    dtype="bfloat16", kv_cache_dtype="auto",
)  # fmt: skip
TWO = replace(ONE, sender="i2", name="prefill:0", role="prefill", pid=12)


def beat(sender: str = "i1", **counters: int) -> Heartbeat:
    return Heartbeat(sender, "proxy", 1, 2, 7, 3, counters)


def row(name: str, pid: int | None, state: str = "ready") -> dict[str, Any]:
    return {"name": name, "role": "decode", "pid": pid, "state": state, "device": "cpu"}


def registry(*hellos: Hello) -> Registry:
    made = Registry(ttl=5.0)
    for hello in hellos:
        assert made.hello(hello, 0.0) is None
    return made


def names(workers: Any) -> list[str]:
    return [worker.hello.name for worker in workers]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"schema": SCHEMA + 1, "block_size": 0},
            f"speaks version {SCHEMA + 1} of the protocol and the proxy version {SCHEMA}: "
            "install the same version of pontil for both",
        ),
        (
            {"model_fingerprint": "other", "model": "a/tiny", "kv_fingerprint": "other"},
            "has model a/tiny (other) but decode:0 has tiny (model): start it with the same --model",
        ),
        (
            {"dtype": "float32", "kv_fingerprint": "other"},
            "has dtype float32 but decode:0 has bfloat16: start it with --dtype bfloat16",
        ),
        (
            {"block_size": 32, "kv_fingerprint": "other"},
            "has block size 32 but decode:0 has 16: start it with --block-size 16",
        ),
        (
            {"block_size": 32, "dtype": "float32", "model_fingerprint": "other"},
            "has model tiny (other), dtype float32 and block size 32 but decode:0 has tiny (model), bfloat16 and 16: "
            "start it with the same --model, --dtype bfloat16 and --block-size 16",
        ),
        (
            {"kv_cache_dtype": "int8", "kv_fingerprint": "other"},
            "has KV cache dtype int8 but decode:0 has auto: start it with --kv-cache-dtype auto",
        ),
        (
            {"kv_fingerprint": "other"},
            "has KV layout other but decode:0 has layout: start it with the same version of pontil, "
            "and for a hybrid model the same --block-size and as many devices",
        ),
    ],
)
def test_what_does_not_fit_the_others_is_refused(change: dict[str, Any], says: str) -> None:  # C8
    reason = registry(ONE).hello(replace(TWO, **change), 0.0)
    assert reason == f"prefill:0 {says}"


KERNELS = "the same --kernels and --quantization"
DEVICE = (
    "a device of the same kind (--prefill and --decode choose it; --kernels does not help), and --deterministic, "
    "--attention-backend and --kernel-backend as there"
)

SUMS = "--tensor-parallel-arithmetic as there, and if it is fast, as many devices for a worker"


@pytest.mark.parametrize(
    ("theirs", "ours", "remedy"),
    [
        ("torch", "avx2", KERNELS),
        ("avx2 int8", "avx2", KERNELS),
        ("torch", "torch/cuda:NVIDIA H200", DEVICE),
        ("torch/cuda:NVIDIA H200", "avx512 int8", DEVICE),
        ("torch/cuda:NVIDIA A100", "torch/cuda:NVIDIA H200", DEVICE),
        ("avx2 row-parallel/2", "avx2", SUMS),
        ("torch/cuda:NVIDIA H200 row-parallel/2", "torch/cuda:NVIDIA H200 row-parallel/4", SUMS),
        ("avx2 row-parallel/2", "avx512 row-parallel/2", KERNELS),
    ],
)
def test_what_rounds_differently_is_refused_with_what_helps(theirs: str, ours: str, remedy: str) -> None:  # C8
    """The KV layout may differ too, but follows from the kernels."""
    there = registry(replace(ONE, kernels=ours))
    reason = there.hello(replace(TWO, kernels=theirs, kv_fingerprint="other"), 0.0)
    assert reason == f"prefill:0 has kernels {theirs} but decode:0 has {ours}: start it with {remedy}"
    assert there.hello(replace(TWO, kernels=ours), 0.0) is None


def test_what_an_older_worker_does_not_say_is_no_difference() -> None:
    assert registry(ONE).hello(replace(TWO, dtype=None, kv_cache_dtype=None), 0.0) is None


def test_the_type_of_the_cache_is_told_by_name() -> None:
    assert registry().generating.snapshot().kv_cache_dtype is None
    for told, shown in (("auto", "bfloat16"), ("int8", "int8"), (None, None)):
        assert registry(replace(ONE, kv_cache_dtype=told)).generating.snapshot().kv_cache_dtype == shown


def refused(workers: Registry) -> list[dict[str, Any]]:
    return [row for row in workers.topology() if row["state"] == "REFUSED"]


def test_the_topology_shows_who_was_refused_and_why_until_one_of_that_name_fits() -> None:  # C8
    workers = registry(ONE)
    reasons = [workers.hello(replace(TWO, sender=f"i{size}", pid=size, block_size=size), 0.0) for size in (32, 64)]
    row = {"name": "prefill:0", "role": "prefill", "pid": 64, "state": "REFUSED", "device": "cpu"}
    assert refused(workers) == [row | {"reason": reasons[1]}] and reasons[1] is not None and "64" in reasons[1]
    assert [load.name for load in workers.generating.snapshot().workers] == ["decode:0"]
    assert workers.hello(TWO, 1.0) is None
    assert refused(workers) == [] and "reason" not in workers.topology()[0]


def test_a_crowd_that_is_refused_is_not_remembered_without_end() -> None:
    workers = registry(ONE)
    for number in range(3 * REFUSED):
        workers.hello(replace(TWO, sender=f"n{number}", name=f"prefill:{number}", dtype="float16"), 0.0)
    names_shown = [row["name"] for row in refused(workers)]
    assert names_shown == [f"prefill:{number}" for number in range(2 * REFUSED, 3 * REFUSED)]


def test_another_model_may_come_when_the_old_workers_are_gone() -> None:
    workers = registry(ONE)
    workers.expire(6.0)
    assert workers.hello(replace(TWO, model_fingerprint="other"), 6.0) is None


def test_silence_for_the_time_to_live_is_the_end() -> None:
    """Any message of a worker renews its time to live; messages of unknown processes have no effect."""
    workers = registry(ONE, TWO)
    router = MessageRouter(
        "proxy", workers, Metrics(), lambda: 4.0, lambda message: True, {}, MessageTurn(), lambda: None
    )
    router.on_messages([beat("i1"), beat("stranger")])
    assert workers.expire(4.9) == []
    assert names(workers.expire(5.1)) == ["prefill:0"]
    assert [load.name for load in workers.generating.snapshot().workers] == ["decode:0"]


def test_a_worker_that_a_supervisor_watches_has_longer() -> None:
    """The supervisor's table keeps a silent worker registered, as long as the table is fresh."""
    workers = registry(ONE, TWO)
    workers.show([row("decode:0", ONE.pid)])
    assert names(workers.expire(5.1, 1.0)) == ["prefill:0"] and names(workers.expire(30.0, FRESH)) == []
    assert names(workers.expire(WATCHED_TTL + 1, 1.0)) == ["decode:0"]
    workers.hello(ONE, 0.0)
    assert names(workers.expire(5.1, FRESH + 1)) == ["decode:0"], "a table that is old says nothing"


def test_goodbye_takes_no_new_requests_and_loses_none() -> None:  # C1
    workers = registry(ONE)
    workers.goodbye("i1")
    assert workers.generating.snapshot().workers == () and "i1" in workers.workers
    workers.goodbye("nobody")


def test_a_snapshot_stays_what_it_was() -> None:  # C1, D17
    workers = registry(ONE)
    before = workers.generating.snapshot().workers
    workers.hello(TWO, 0.0)
    workers.heartbeat(beat())
    workers.expire(99.0)
    assert [(load.name, load.free_blocks) for load in before] == [("decode:0", 9)]
    assert plan(before, "always") == Route.alone(before[0]) and workers.generating.snapshot().workers == ()


@pytest.mark.parametrize("rows", [[row("decode:0", 99)], [row("decode:0", 11, "exited")], [row("decode:0", None)], []])
def test_the_table_ends_a_worker_at_once(rows: list[dict[str, Any]]) -> None:
    workers = registry(ONE)
    assert workers.show([row("decode:0", 11)]) == []
    assert names(workers.show(rows)) == ["decode:0"]


@pytest.mark.parametrize("state", ["EXITED", "KILLED", "BACKOFF", "GIVEN_UP", "given up"])
def test_dead_states(state: str) -> None:
    workers = registry(ONE)
    workers.show([row("decode:0", 11)])
    assert names(workers.show([row("decode:0", 11, state)])) == ["decode:0"]


def test_a_namesake_on_another_host_is_not_the_tables() -> None:
    workers = registry(ONE)
    assert workers.show([row("decode:0", 99)]) == []


@pytest.mark.parametrize(
    ("before", "others"),
    [({"generated_before": 4}, None), ({"prompt_tokens_computed_before": 4}, None), ({}, {"proxies": 1})],
)
def test_what_a_worker_did_before_this_proxy_came_is_no_growth(
    before: dict[str, int], others: dict[str, int] | None
) -> None:
    """Else each restart of a proxy would show all handoffs and failures of a worker's life as new."""
    made, first = registry(ONE), replace(beat(), others=others)
    counters = {"handoffs_complete": 7, "thread_failures_grammars": 1} | before
    assert made.heartbeat(replace(first, counters=counters)) == {}
    later = replace(first, counters=counters | {"handoffs_complete": 9})
    assert made.heartbeat(later) == {"handoffs_complete": 2}


def test_counters_are_added_by_difference() -> None:
    workers = registry(ONE)
    assert workers.heartbeat(beat(bytes=10)) == {"bytes": 10}
    assert workers.heartbeat(beat(bytes=10)) == {}
    assert workers.heartbeat(beat(bytes=15, more=1)) == {"bytes": 5, "more": 1}
    assert workers.heartbeat(beat(bytes=-4)) == {}
    assert workers.heartbeat(beat(bytes=16)) == {"bytes": 1}
    assert workers.heartbeat(beat("stranger", bytes=1)) is None


def test_a_worker_that_comes_back_does_not_count_twice() -> None:
    workers = registry(ONE)
    workers.heartbeat(beat(bytes=10))
    workers.expire(20.0)
    workers.hello(ONE, 21.0)
    assert workers.heartbeat(beat(bytes=12)) == {"bytes": 2}


def test_the_topology_joins_table_and_load() -> None:
    workers = registry(ONE, TWO)
    workers.heartbeat(beat())
    workers.show([row("proxy", 1), row("decode:0", 11, "stale")])
    proxy, decode, prefill = workers.topology()
    assert proxy == row("proxy", 1, "READY")
    assert decode["state"] == "STALE" and decode["load"]["free_blocks"] == 7
    assert decode["load"]["total_blocks"] == ONE.num_blocks - 1
    assert (prefill["name"], prefill["pid"], prefill["state"], prefill["role"]) == ("prefill:0", 12, "READY", "prefill")


def test_the_topology_shows_whatever_else_the_table_says() -> None:
    """The supervisor's figures and reasons pass through, also those of a later version."""
    workers = registry(ONE)
    about = {"restarts": 2, "rss_bytes": 7, "last_death": {"cause": "crash"}, "to come": [1]}
    workers.show([row("decode:0", 11) | about, row("prefill:0", None, "given_up") | {"reason": "failed: no model"}])
    decode, prefill = workers.topology()
    assert decode.items() >= (row("decode:0", 11, "READY") | about).items() and "reason" not in decode
    assert prefill == row("prefill:0", None, "GIVEN_UP") | {"reason": "failed: no model"}
    assert "load" in decode and "load" not in prefill


def test_the_context_is_what_the_worker_can_hold() -> None:
    assert registry(ONE).generating.snapshot().workers[0].context == 144
    assert registry(replace(ONE, num_blocks=1000)).generating.snapshot().workers[0].context == 512


def test_what_a_turn_defers_is_done_after_its_messages_and_before_the_next_dispatch() -> None:
    done, metrics, turn = list[str](), Metrics(), MessageTurn()

    def broken() -> None:
        raise KeyError("a bug")

    def handle(message: Heartbeat) -> None:
        turn.defer(broken)
        turn.defer(lambda: done.append(f"late {message.sender}"))
        done.append(message.sender)

    router = MessageRouter(
        "proxy", Registry(15.0), metrics, lambda: 0.0, lambda message: True, {Heartbeat: handle}, turn,
        lambda: done.append("dispatch"),
    )  # fmt: skip
    router.on_messages([beat("i1"), beat("i2")])
    assert done == ["i1", "i2", "late i1", "late i2", "dispatch"] and metrics.threads.counts() == {"messages": 2}
    turn.defer(lambda: done.append("at once"))
    assert done[5:] == ["at once"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"block_size": 0}, "block_size 0"),
        ({"num_blocks": 1}, "num_blocks 1"),
        ({"max_num_seqs": -1}, "max_num_seqs -1"),
        ({"max_model_len": 0}, "max_model_len 0"),
        ({"max_num_batched_tokens": 1 << 62}, "max_num_batched_tokens"),
        ({"embedding_size": 0}, "embedding_size 0"),
        ({"role": "baker"}, "the role 'baker', which is none of"),
    ],
)
def test_a_worker_with_impossible_numbers_is_refused(change: dict[str, Any], says: str) -> None:
    """One that could hold no sequence would have every request refused."""
    made = registry(ONE)
    assert says in str(made.hello(replace(ONE, sender="x", name="x:0", **change), 0.0))
    assert made.generating.known_context == registry(ONE).generating.known_context


def test_an_unknown_role_and_impossible_loads_change_nothing() -> None:
    made = registry(ONE)
    assert made.change_role(RoleChange(ONE.sender, "p", "baker"))
    assert made.workers[ONE.sender].role == ONE.role
    for stated, kept in ((-5, 0), (1 << 60, ONE.num_blocks - 1)):
        made.heartbeat(Heartbeat(ONE.sender, "p", 0, 0, stated, 0))
        assert made.workers[ONE.sender].free_blocks == kept


@pytest.mark.parametrize("now", [row("decode:0", None, "backoff"), row("decode:0", 99)])
def test_a_worker_that_died_before_any_table_named_it_is_dead(now: dict[str, Any]) -> None:
    """It registers and dies within a second: the first table that knows its pid knows that it has ended."""
    workers = registry(ONE)
    assert workers.show([row("decode:0", None, "starting")]) == []
    assert names(workers.show([now | {"ended_pids": [7, ONE.pid]}])) == ["decode:0"]
    assert "ended_pids" not in workers.topology()[0]


@pytest.mark.parametrize("then", [[row("decode:0", 99)], []])
def test_a_worker_whose_hello_is_read_after_its_end_is_dead_with_the_next_table(then: list[dict[str, Any]]) -> None:
    """A proxy that starts slowly reads it while an operator restarts the worker, or removes it."""
    workers = registry()
    for now in (row("decode:0", ONE.pid), row("decode:0", None, "exited")):
        assert workers.show([now]) == []
    workers.show(then)
    assert workers.processes.is_late(ONE) and workers.hello(ONE, 0.0) is None
    assert names(workers.show(then)) == ["decode:0"]
    workers.show([row("decode:0", ONE.pid)])
    assert not workers.processes.is_late(ONE), "another process has that pid"


def test_one_that_says_hello_again_lives_whatever_a_table_showed_of_its_name_and_pid() -> None:
    workers = registry()
    for now in (row("decode:0", ONE.pid), row("decode:0", None, "exited")):
        workers.show([now])
    again = replace(ONE, sender="another")
    assert workers.processes.is_late(ONE) and workers.processes.is_late(again), "each has to say it twice"
    assert not workers.processes.is_late(again) and workers.hello(again, 0.0) is None
    assert workers.show([row("decode:0", None, "exited")]) == []


def test_a_namesake_on_another_host_outlives_the_tables_own() -> None:
    workers = registry(ONE)
    assert workers.show([row("decode:0", 99) | {"ended_pids": [7]}]) == []


def test_models_have_workers_of_their_own() -> None:
    made = Registry(5.0, further=("other",))
    other = replace(TWO, model="other", model_fingerprint="another", name="other-mixed:0", block_size=32)
    assert made.hello(ONE, 0.0) is None and made.hello(other, 0.0) is None
    assert [names(group.available) for group in made.answering] == [["decode:0"], ["other-mixed:0"]]
    unlike = replace(other, sender="i3", block_size=16)
    assert "has block size 16 but other-mixed:0 has 32" in str(made.hello(unlike, 0.0))
    table = [row("decode:0", 11), row("other-mixed:0", 12, "given_up") | {"model": "other"}]
    made.show([row("decode:0", 11), row("other-mixed:0", 12)])
    assert names(made.show(table)) == ["other-mixed:0"]
    assert made.of("other").is_given_up and not made.generating.is_given_up


def test_a_worker_in_another_role_takes_its_part() -> None:
    """Prompts are more tokens than answers: by what it did before it would be avoided for minutes."""
    made = registry(ONE, TWO, replace(TWO, sender="i3", name="prefill:1", pid=13))
    one, two, three = made.workers.values()
    one.recent, two.recent, three.recent = 300.0, 90_000.0, 80_000.0
    made.change_role(RoleChange("i2", "proxy", "decode"))
    assert (two.role, two.recent) == ("decode", 300.0)
    made.change_role(RoleChange("i2", "proxy", "decode", draining=True))
    made.change_role(RoleChange("i2", "proxy", "prefill"))
    assert two.recent == 80_000.0
