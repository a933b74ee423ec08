# SPDX-License-Identifier: Apache-2.0
"""Effects seen by a user when a process dies, a client disconnects, or a request is invalid; and leftovers at the
end."""

import json
from typing import Any

import psutil
import pytest
from command_line import app
from oracle import at_rest, settled
from served import Served, wait_for

LONG = {"prompt": "Count: one, two, three,", "max_tokens": 200, "ignore_eos": True, "temperature": 0}
WORKERS = ("prefill:0", "decode:0")
SHORT = {"max_tokens": 16, "ignore_eos": True, "temperature": 0}
MODEL = {"model": "smollm2-135m-instruct"}


def test_topology_tells_every_process(pair: Served) -> None:
    at_rest(pair)
    rows = pair.topology()
    assert {name: row["role"] for name, row in rows.items()} == {
        "proxy": "proxy",
        "prefill:0": "prefill",
        "decode:0": "decode",
    }
    pids = {process.pid for process in pair.tree()}
    assert {row["pid"] for row in rows.values()} <= pids
    assert all(row["device"].startswith(("cpu", "cuda")) for row in rows.values())
    wait_for(lambda: all("cpu_percent" in row for row in pair.topology().values()), 60, "figures of all processes")
    rows = pair.topology()
    assert all(row["rss_bytes"] > 10 << 20 and row["uptime_seconds"] >= 0 for row in rows.values())
    assert all(row["restarts"] == 0 and row["start_seconds"] > 0 for row in rows.values())


def test_status_shows_them(pair: Served) -> None:  # G3
    at_rest(pair)
    processes, _, prompts = app("status", "--url", f"http://127.0.0.1:{pair.port}").stdout.partition("\n\n")
    heading, *lines = processes.splitlines()
    assert prompts.startswith("KEY") or not prompts
    assert heading.split()[:6] == ["NAME", "STATE", "DEVICE", "PID", "UPTIME", "RESTARTS"]
    assert [line.split()[:2] for line in lines] == [[name, "ready"] for name in ("proxy", *WORKERS)]
    pids = [row["pid"] for row in pair.topology().values()]
    assert [int(line[: heading.index("PID") + 3].split()[-1]) for line in lines] == pids


# Another start of the real model for the same: tests/system/test_failover.py kills a small one's prefill worker.
@pytest.mark.parametrize("name", ["decode:0", pytest.param("prefill:0", marks=pytest.mark.long)])
def test_a_worker_that_is_killed_comes_back_and_its_streams_go_on(pair: Served, name: str) -> None:
    at_rest(pair)
    before = pair.topology()
    reply = pair.request("POST", "/v1/completions", MODEL | LONG | {"stream": True})
    events = reply.events()
    next(events)
    pair.kill(name)
    *told, done = events
    assert done == "[DONE]" and not [event for event in told if "error" in json.loads(event)]
    at_rest(pair)
    after = pair.topology()
    others = set(before) - {name}
    assert {other: after[other]["pid"] for other in others} == {other: before[other]["pid"] for other in others}
    assert after[name]["restarts"] == before[name]["restarts"] + 1  # G3
    assert after[name]["last_death"]["reason"] == "was killed by SIGKILL" and "reason" not in after[name]
    answer = pair.complete("The capital of France is", max_tokens=5)
    assert answer["choices"][0]["text"].startswith(" Paris")


def test_a_proxy_that_is_killed_comes_back_with_the_same_workers(pair: Served) -> None:
    """It has the conversations that were kept."""
    asked: dict[str, Any] = {"input": "Name a colour.", "temperature": 0, "max_output_tokens": 6}
    kept = pair.request("POST", "/v1/responses", asked).json()
    second = asked | {"input": "And another.", "previous_response_id": kept["id"], "store": False}
    followed = pair.request("POST", "/v1/responses", second).json()
    assert followed["usage"]["input_tokens"] > kept["usage"]["input_tokens"]
    idle = settled(pair).free_blocks
    before = pair.topology()
    reply = pair.request("POST", "/v1/completions", MODEL | LONG | {"stream": True})
    next(reply.events())
    pair.kill("proxy")
    reply.connection.close()
    at_rest(pair)
    after = pair.topology()
    assert after["proxy"]["pid"] != before["proxy"]["pid"]
    assert {name: after[name]["pid"] for name in WORKERS} == {name: before[name]["pid"] for name in WORKERS}
    # The abandoned request holds nothing: both pools are as free as they were.
    wait_for(lambda: free(pair) == idle, 60, "free blocks")
    assert pair.complete("The capital of France is", **SHORT)["usage"]["completion_tokens"] == 16
    assert pair.get(f"/v1/responses/{kept['id']}") == kept
    again = pair.request("POST", "/v1/responses", second).json()
    assert again["output"][0]["content"] == followed["output"][0]["content"]
    assert again["usage"]["input_tokens"] == followed["usage"]["input_tokens"]


def free(served: Served) -> dict[str, int]:
    rows = served.topology()
    return {name: rows[name].get("load", {}).get("free_blocks", 0) for name in WORKERS}


def test_a_client_that_leaves_frees_both_sides(pair: Served) -> None:
    at_rest(pair)
    for _ in range(3):
        reply = pair.request("POST", "/v1/completions", MODEL | LONG | {"stream": True})
        next(reply.events())
        reply.connection.close()
        reply.response.close()
    wait_for(lambda: pair.metric("pontil_num_requests_running") == 0, 60, "the end of abandoned work")


BAD: list[tuple[str, Any, int]] = [
    ("/v1/completions", {}, 400),
    ("/v1/completions", MODEL, 400),
    ("/v1/completions", {"model": "nobody", "prompt": "x"}, 404),
    ("/v1/completions", MODEL | {"prompt": 7}, 400),
    ("/v1/completions", MODEL | {"prompt": ""}, 400),
    ("/v1/completions", MODEL | {"prompt": []}, 400),
    ("/v1/completions", MODEL | {"prompt": [-1]}, 400),
    ("/v1/completions", MODEL | {"prompt": [10**9]}, 400),
    ("/v1/completions", MODEL | {"prompt": [1] * 9000}, 400),
    ("/v1/completions", MODEL | {"prompt": "x", "max_tokens": 0}, 400),
    ("/v1/completions", MODEL | {"prompt": "x", "max_tokens": -3}, 400),
    ("/v1/completions", MODEL | {"prompt": "x", "max_tokens": 10**9}, 400),
    ("/v1/completions", MODEL | {"prompt": "x", "max_tokens": "5"}, 400),
    ("/v1/completions", MODEL | {"prompt": "x", "temperature": "hot"}, 400),
    ("/v1/completions", b'{"model": "smollm2-135m-instruct", "prompt": "x", "temperature": NaN}', 400),
    ("/v1/completions", MODEL | {"prompt": "x", "best_of": 3}, 400),
    ("/v1/completions", MODEL | {"prompt": "x", "temprature": 1}, 400),
    ("/v1/completions", b"[1, 2", 400),
    ("/v1/completions", [1, 2], 400),
    ("/v1/completions", b"[" * 100_000, 400),
    ("/v1/completions", b'{"a":' * 50_000, 400),
    ("/v1/completions", b"\xff\xfe", 400),
    ("/v1/chat/completions", MODEL, 400),
    ("/v1/chat/completions", MODEL | {"messages": []}, 400),
    ("/v1/chat/completions", MODEL | {"messages": [{"role": "user"}]}, 400),
    ("/v1/chat/completions", MODEL | {"messages": "hello"}, 400),
    ("/v1/nothing", {}, 404),
]


def test_nonsense_is_explained_and_the_server_goes_on(pair: Served) -> None:
    at_rest(pair)
    pids = {name: row["pid"] for name, row in pair.topology().items()}
    for path, body, status in BAD:
        reply = pair.request("POST", path, body)
        answer = reply.json()
        assert reply.status == status, (path, body if len(str(body)) < 200 else "…", answer)
        assert set(answer["error"]) >= {"message", "type", "param", "code"}
        assert "Traceback" not in answer["error"]["message"]
    assert pair.request("GET", "/v1/completions").status == 405
    at_rest(pair)
    assert {name: row["pid"] for name, row in pair.topology().items()} == pids
    assert pair.complete("The capital of France is", max_tokens=1)["usage"]["completion_tokens"] == 1


def test_an_idle_tree_sleeps(pair: Served) -> None:
    """Each process takes less than 2 % of a core. Measured as CPU time, so that other load on the machine does not
    count."""
    at_rest(pair)

    def shares(seconds: int) -> dict[int, float]:
        before = {process.pid: sum(process.cpu_times()[:2]) for process in pair.tree()}
        psutil.cpu_percent(interval=seconds)
        return {one.pid: (sum(one.cpu_times()[:2]) - before[one.pid]) / seconds for one in pair.tree()}

    # Work at leisure may begin a while after the last request.
    wait_for(lambda: max(shares(3).values()) < 0.02, 60, "three seconds in which all sleep")
