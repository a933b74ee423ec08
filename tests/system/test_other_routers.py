# SPDX-License-Identifier: Apache-2.0
"""Workers with endpoints of their own, driven by routers of others: llm-d's sidecar is replayed, vLLM's router is the
real one where it is installed."""

import importlib.util
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from served import START_TIMEOUT, Served, free_port, launched, wait_for
from sidecar import KEEP, Sidecar, both_ready, driven
from tiny_llama import write_tiny_llama

COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
STORY = "Once upon a time there was a prompt that was computed by one worker and continued by another one. "
DRAWN: dict[str, Any] = {
    "model": "tiny", "prompt": STORY, "max_tokens": 24, "seed": 5, "ignore_eos": True, "return_token_ids": True,
}  # fmt: skip
QUICK = ("--kv-lease", "3", "--kv-stall-timeout", "1", "--kv-handshake-timeout", "1")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    write_tiny_llama(folder, max_model_len=2048, dtype="bfloat16")
    return folder


@pytest.fixture(scope="module")
def sidecar(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    with ExitStack() as stack:
        yield both_ready(
            stack, tmp_path_factory.mktemp("driven"), "--model", str(model), "--kv-cache-memory", "16MiB", *QUICK
        )


@pytest.fixture(scope="module")
def one(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    """One launch behind both of the sidecar's addresses: as many processes as the short run of the tests can afford."""
    with ExitStack() as stack:
        served = driven(
            stack, tmp_path_factory.mktemp("one"), "decode", "--model", str(model), "--kv-cache-memory", "16MiB"
        )
        wait_for(served.is_ready, START_TIMEOUT, "readiness")
        yield Sidecar(served, served)


def counted(served: Served, result: str, count: float) -> None:
    """Wait until heartbeats have told so many handoffs."""
    name = f'pontil_handoffs_total{{result="{result}"}}'
    wait_for(lambda: served.metric(name) >= count, 30, f"{count:g} handoffs that are {result}")
    assert served.metric(name) == count


def ids_of(answer: dict[str, Any]) -> list[list[int]]:
    return [choice["token_ids"] for choice in answer["choices"]]


def test_a_foreign_router_moves_a_prompt(one: Sidecar) -> None:
    alone = one.decode.request("POST", COMPLETIONS, DRAWN | {"cache_salt": "alone"}).json()
    first, second = one.ask(COMPLETIONS, DRAWN)
    assert ids_of(second) == ids_of(alone) and second["usage"] == alone["usage"]
    assert first["usage"]["completion_tokens"] == 1 and ids_of(first) == [ids_of(alone)[0][:1]]
    counted(one.decode, "complete", 1)


@pytest.mark.long
def test_a_foreign_router_drives_two_workers(sidecar: Sidecar) -> None:
    """The answer is that of one worker alone; each half states its own usage; faults between the two requests cost time
    and no token. One test, since both launches are counted."""
    alone = sidecar.decode.request("POST", COMPLETIONS, DRAWN | {"cache_salt": "alone"}).json()
    first, second = sidecar.ask(COMPLETIONS, DRAWN)
    assert ids_of(second) == ids_of(alone) and second["usage"] == alone["usage"]
    assert first["usage"] == alone["usage"] | {
        "completion_tokens": 1, "total_tokens": alone["usage"]["prompt_tokens"] + 1,
    }  # fmt: skip
    assert first["choices"][0]["token_ids"] == alone["choices"][0]["token_ids"][:1]
    counted(sidecar.decode, "complete", 1)
    assert sidecar.decode.metric("pontil_kv_transfer_bytes_total") > 0

    # A chat with several choices, streamed: the sidecar drops stream and stream_options for the first request.
    chat = {"model": "tiny", "messages": [{"role": "user", "content": STORY}], "n": 2, "seed": 3, "max_tokens": 8,
            "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}  # fmt: skip
    told = sidecar.keep(CHATS, chat)["kv_transfer_params"]
    events = list(sidecar.go_on(CHATS, chat, told).events())
    assert events[-1] == "[DONE]" and '"completion_tokens": 16' in events[-2]
    counted(sidecar.decode, "complete", 2)

    # A dict that is used twice, forged or meaningless moves nothing, and changes no answer.
    salted = DRAWN | {"cache_salt": "b"}
    first, second = sidecar.ask(COMPLETIONS, salted)
    for wrong in (
        {}, {"remote_port": 9}, {"remote_host": "203.0.113.9"}, {"remote_engine_id": "another"},
        {"remote_request_id": 7}, {"remote_host": ["x"] * 9},
    ):  # fmt: skip
        answer = sidecar.go_on(COMPLETIONS, salted | {"cache_salt": str(wrong)}, first["kv_transfer_params"] | wrong)
        assert ids_of(answer.json()) == ids_of(second) == ids_of(alone), wrong
    counted(sidecar.decode, "complete", 3)

    # Nobody comes for a prompt: its lease ends.
    sidecar.keep(COMPLETIONS, DRAWN | {"cache_salt": "c"})
    counted(sidecar.prefill, "expired", 1)
    assert sidecar.decode.get("/ready") and sidecar.prefill.get("/ready")

    # The worker that kept the prompt is killed between the two requests.
    _, after = sidecar.ask(COMPLETIONS, DRAWN | {"cache_salt": "d"}, lambda: sidecar.prefill.kill("prefill:0"))
    assert ids_of(after) == ids_of(alone)
    sidecar.prefill.living("prefill:0")
    wait_for(sidecar.prefill.is_ready, 60, "readiness")
    before = sidecar.decode.metric('pontil_handoffs_total{result="complete"}')
    _, again = sidecar.ask(COMPLETIONS, DRAWN | {"cache_salt": "e"})
    assert ids_of(again) == ids_of(alone)
    counted(sidecar.decode, "complete", before + 1)

    for served in (sidecar.prefill, sidecar.decode):
        assert served.metric("pontil_ledger_imbalance") == 0
    with closing(sqlite3.connect(f"file:{sidecar.prefill.usage_log}?mode=ro", uri=True)) as log:
        billed = {count for (count,) in log.execute("SELECT completion_tokens FROM requests WHERE state = 'closed'")}
    assert billed == {1}


def test_what_a_router_cannot_mean_is_refused(one: Sidecar) -> None:
    for wrong, says in (
        ({"max_tokens": 2}, "set max_tokens to 1"),
        ({"prompt": [STORY, STORY]}, "send one"),
        ({"kv_transfer_params": KEEP | {"do_remote_prefill": True}}, "a worker does one of them"),
        ({"kv_transfer_params": [1]}, "must be an object"),
        ({"kv_transfer_params": {"do_remote_decode": 1}}, "true or false"),
    ):
        body = DRAWN | {"max_tokens": 1, "kv_transfer_params": KEEP} | wrong
        reply = one.prefill.request("POST", COMPLETIONS, body)
        assert reply.status == 400 and says in reply.json()["error"]["message"]


@pytest.mark.long
def test_the_endpoint_of_a_whole_system_is_driven(model: Path, tmp_path: Path) -> None:
    """A prefill worker keeps the prompt and a decode worker claims it, behind one ordinary proxy; a stream tells where
    it is as a whole answer does, and so does a response."""
    options = ("--share-devices", "--no-self-test", "--kv-cache-memory", "16MiB", *QUICK)
    with launched(tmp_path, "--model", str(model), "--disagg", "always", *options) as served:
        alone = served.request("POST", COMPLETIONS, DRAWN | {"cache_salt": "alone"}).json()
        system = Sidecar(served, served)
        first, second = system.ask(COMPLETIONS, DRAWN | {"cache_salt": "a"})
        assert ids_of(second) == ids_of(alone) and second["usage"] == alone["usage"]
        told = first["kv_transfer_params"]
        assert told["remote_port"] is None and len(told["remote_block_ids"]) == len(set(told["remote_block_ids"]))
        keeping = DRAWN | {"cache_salt": "b", "max_tokens": 1, "kv_transfer_params": KEEP}
        (streamed,) = [one for one in served.stream(COMPLETIONS, keeping) if "kv_transfer_params" in one]
        third = system.go_on(COMPLETIONS, DRAWN | {"cache_salt": "b"}, streamed["kv_transfer_params"]).json()
        assert ids_of(third) == ids_of(alone)
        asked = {"model": "tiny", "input": STORY, "max_output_tokens": 1, "store": False}
        kept = served.request("POST", "/v1/responses", asked | {"kv_transfer_params": KEEP}).json()
        claimed = asked | {"max_output_tokens": 4, "kv_transfer_params": kept["kv_transfer_params"]}
        assert served.request("POST", "/v1/responses", claimed).status == 200
        # The first was handed over by its own proxy.
        counted(served, "complete", 4)
        assert served.metric("pontil_ledger_imbalance") == 0


@pytest.mark.long
def test_vllms_own_router_drives_two_workers(sidecar: Sidecar, tmp_path: Path) -> None:
    if importlib.util.find_spec("vllm_router") is None:
        pytest.skip("vllm-router is not installed: pip install pontil[vllm-router]")
    port, output = free_port(), tmp_path / "router"
    command = [
        sys.executable, "-m", "vllm_router.launch_router", "--vllm-pd-disaggregation", "--host", "127.0.0.1",
        "--port", str(port), "--prometheus-port", str(free_port()), "--policy", "round_robin",
        "--prefill", f"http://127.0.0.1:{sidecar.prefill.port}",
        "--decode", f"http://127.0.0.1:{sidecar.decode.port}",
    ]  # fmt: skip
    with output.open("wb") as file:
        router = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
    routed = Served(router, port, output, tmp_path / "none")
    try:
        wait_for(lambda: "Starting server on" in output.read_text(), 60, "the router's start")
        before = sidecar.decode.metric('pontil_handoffs_total{result="complete"}')
        body = DRAWN | {"prompt": f"Another one. {STORY}"}
        alone = sidecar.decode.request("POST", COMPLETIONS, body | {"cache_salt": "alone"}).json()
        reply = wait_for(lambda: answered(routed, body), 30, "the router's first answer") or {}
        assert [choice["text"] for choice in reply["choices"]] == [choice["text"] for choice in alone["choices"]]
        assert reply["usage"] == alone["usage"]
        events = routed.stream(COMPLETIONS, {name: body[name] for name in ("model", "prompt", "max_tokens", "seed")})
        assert events[-1]["usage"]["completion_tokens"] > 0
        counted(sidecar.decode, "complete", before + 2)
    finally:
        router.kill()
        router.wait()


def answered(served: Served, body: dict[str, Any]) -> dict[str, Any] | None:
    try:
        reply = served.request("POST", COMPLETIONS, body)
        answer: dict[str, Any] = reply.json()
    except OSError:
        return None
    return answer if reply.status == 200 else None
