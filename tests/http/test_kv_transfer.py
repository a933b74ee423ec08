# SPDX-License-Identifier: Apache-2.0
"""Requests that a router of others makes of a worker's own endpoint: `kv_transfer_params` in requests and answers."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted_site import ScriptedSite, site
from scripted_worker import DEADLINE, ScriptedWorker

from pontil.runtime.proxy.requests import remote_kv
from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.wire.messages import Submit

COMPLETIONS, CHATS, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"
PROMPT = "a prompt of more than one block"
KEEP: dict[str, Any] = {
    "do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None,
    "remote_host": None, "remote_port": None,
}  # fmt: skip
KEPT: dict[str, Any] = {
    "do_remote_decode": False, "do_remote_prefill": True, "remote_engine_id": "e7", "remote_host": "127.0.0.1",
    "remote_port": 4567, "remote_request_id": "r.0", "remote_block_ids": [[0, 1]], "tp_size": 1,
}  # fmt: skip


@pytest.fixture
def driven(tmp_path: Path, tokenizer: Tokenizer) -> Iterator[ScriptedSite]:
    with site(tmp_path, tokenizer, kv_transfers=True) as made:
        yield made


def taken(worker: ScriptedWorker) -> Submit:
    return worker.submits.get(timeout=DEADLINE)


def ask(served: ScriptedSite, told: Any, path: str = COMPLETIONS, **fields: Any) -> Any:
    shown: dict[str, dict[str, Any]] = {
        COMPLETIONS: {"prompt": PROMPT, "max_tokens": 1},
        CHATS: {"messages": [{"role": "user", "content": PROMPT}], "max_completion_tokens": 1},
        RESPONSES: {"input": PROMPT, "max_output_tokens": 1},
    }
    return served.ask("POST", path, shown[path] | {"kv_transfer_params": told} | fields)


def test_an_answer_tells_where_its_prompt_is_kept(driven: ScriptedSite) -> None:
    worker = driven.worker("prefill:0", role="prefill", peer_endpoint="tcp://127.0.0.1:4567")
    answer = ask(driven, KEEP)
    submit = taken(worker)
    assert (submit.phase, submit.peer, submit.transfer_secret) == ("hold", None, None)
    told = answer.json["kv_transfer_params"]
    assert told == {
        "do_remote_prefill": True, "do_remote_decode": False, "remote_engine_id": worker.incarnation,
        "remote_host": "127.0.0.1", "remote_port": 4567, "remote_request_id": submit.transfer_id,
        "remote_block_ids": [7, 10],
    }  # fmt: skip
    assert answer.json["usage"]["completion_tokens"] == 1
    # A router sends the number of choices too, and discards them all.
    several = ask(driven, KEEP, CHATS, n=3, max_tokens=1)
    assert len(several.json["choices"]) == 1 and several.json["kv_transfer_params"]["remote_request_id"]
    assert taken(worker).sampling["n"] == 1


def test_what_was_told_reaches_the_worker_and_nothing_else_does(driven: ScriptedSite) -> None:
    worker = driven.worker("decode:0", role="decode")
    answer = ask(driven, KEPT, max_tokens=3)
    submit = taken(worker)
    assert (submit.phase, submit.transfer_id, submit.peer) == ("claim", "r.0", "e7")
    assert submit.peer_endpoint == "tcp://127.0.0.1:4567" and submit.peer_blocks == [0, 1]
    assert answer.status == 200 and "kv_transfer_params" not in answer.json
    assert ask(driven, KEPT, CHATS, stream=True, max_completion_tokens=3).events[-1] == "[DONE]"
    assert taken(worker).phase == "claim"


@pytest.mark.parametrize(
    "wrong",
    [
        {"remote_engine_id": None}, {"remote_engine_id": ""}, {"remote_engine_id": 7}, {"remote_engine_id": "x" * 600},
        {"remote_engine_id": "e\n7"}, {"remote_host": "example.com"}, {"remote_host": "192.0.2.7"}, {"remote_host": []},
        {"remote_host": "localhost"}, {"remote_host": "127.0.0.1%eth0"}, {"remote_port": 0}, {"remote_port": 65536},
        {"remote_port": True}, {"remote_port": "4567"}, {"remote_port": 45.5}, {"remote_request_id": None},
        {"remote_request_id": {"a": 1}}, {"remote_block_ids": None}, {"remote_block_ids": 2},
        {"remote_block_ids": [[0], [1]]}, {"remote_block_ids": [0, -1]}, {"remote_block_ids": [0, True]},
        {"remote_block_ids": [0, 1 << 70]}, {"remote_block_ids": ["0"]},
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_computed_here(driven: ScriptedSite, wrong: dict[str, Any]) -> None:
    worker = driven.worker()
    answer = ask(driven, KEPT | wrong, max_tokens=3)
    submit = taken(worker)
    assert answer.status == 200
    assert (submit.phase, submit.transfer_id, submit.peer, submit.peer_endpoint) == ("whole", None, None, None)


def test_many_blocks_are_read_in_a_thread_and_too_many_not_at_all(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every endpoint takes them, from any client, as many as a body holds."""
    threads, is_block = set[int | None](), remote_kv.is_block

    def watched(number: Any) -> bool:
        threads.add(threading.get_ident())
        return is_block(number)

    monkeypatch.setattr(remote_kv, "is_block", watched)
    with site(tmp_path, tokenizer) as ordinary:
        worker, most = ordinary.worker(), remote_kv.MOST_TOLD
        told = ask(ordinary, KEEP).json["kv_transfer_params"]
        taken(worker)
        for blocks in ([0] * (most + 1), [[0] * (most + 1)], [[0]] * (most + 1), [[0] * most, [0]]):
            assert ask(ordinary, told | {"remote_block_ids": blocks}).status == 200
            served = taken(worker)
            assert (served.phase, served.peer_blocks) == ("whole", None)
        assert not threads
        assert ask(ordinary, told | {"remote_block_ids": [[0] * most]}).status == 200
        claimed = taken(worker)
        assert (claimed.phase, claimed.peer_blocks) == ("claim", [0] * most)
        assert threads and ordinary.thread.ident not in threads


def test_a_system_with_keys_believes_its_own_proxies_only(tmp_path: Path, tokenizer: Tokenizer) -> None:
    folders = [tmp_path / name for name in ("first", "second", "third")]
    for folder in folders:
        folder.mkdir()
    keys = {"kv_transfers": True, "keys": "5b" * 32}
    with site(folders[0], tokenizer, **keys) as first, site(folders[1], tokenizer, **keys) as second:
        prefill = first.worker("prefill:0", role="prefill", peer_endpoint="tcp://[2001:db8::7]:4567")
        decode = second.worker("decode:0", role="decode")
        told = ask(first, KEEP).json["kv_transfer_params"]
        held = taken(prefill)
        assert told["remote_host"] == "2001:db8::7" and len(told["signature"]) == 64
        assert held.transfer_secret and held.transfer_secret not in str(told)
        ask(second, told)
        claimed = taken(decode)
        assert (claimed.phase, claimed.peer_endpoint) == ("claim", "tcp://[2001:db8::7]:4567")
        assert claimed.transfer_secret == held.transfer_secret
        names = ("remote_engine_id", "remote_host", "remote_request_id")
        forged = [*(told | {name: KEPT[name]} for name in names), told | {"remote_port": 4568}]
        for wrong in (*forged, told | {"signature": "0" * 64}, told | {"signature": None}, KEPT):
            assert ask(second, wrong).status == 200 and taken(decode).phase == "whole"
    with site(folders[2], tokenizer, kv_transfers=True, keys="5c" * 32) as third:
        other = third.worker("decode:0", role="decode")
        assert ask(third, told).status == 200 and taken(other).phase == "whole"


@pytest.mark.parametrize(
    ("told", "fields", "says"),
    [
        (KEEP, {"max_tokens": 2}, "set max_tokens to 1"),
        (KEEP, {"prompt": ["a", "b"]}, "there are 2: send one"),
        (KEPT, {"prompt": ["a", "b"]}, "there are 2: send one"),
        (KEEP | {"do_remote_prefill": True}, {}, "a worker does one of them"),
        ({"do_remote_decode": "yes"}, {}, "do_remote_decode must be true or false"),
        ([], {}, "must be an object"),
        (KEEP, {"max_completion_tokens": 2}, "is for /v1/chat/completions"),
    ],
)
def test_what_no_router_means_is_refused(driven: ScriptedSite, told: Any, fields: dict[str, Any], says: str) -> None:
    driven.worker()
    answer = ask(driven, told, **fields)
    assert answer.status == 400 and says in answer.json["error"]["message"]


def test_what_asks_for_nothing_is_no_request_for_kv(driven: ScriptedSite) -> None:
    worker = driven.worker()
    for told in (None, {}, {"do_remote_decode": False}):
        assert "kv_transfer_params" not in ask(driven, told).json
        assert taken(worker).phase == "whole"
    # Both limits of one value, as a router sends that knows no endpoints.
    assert ask(driven, KEEP, max_completion_tokens=1).headers["x-pontil-ignored"] == "max_completion_tokens"
    taken(worker)
    # Logprobs of the prompt are known where it is computed.
    assert "kv_transfer_params" not in ask(driven, KEPT, prompt_logprobs=0).json
    assert taken(worker).phase == "whole"


def told_by(path: str, answer: Any) -> Any:
    """Return what a stream tells of its prompt: it does so once, with the end of the answer."""
    events = [one for one in answer.events if one != "[DONE]"]
    if path != RESPONSES:
        last = next(one for one in events if one["choices"] and one["choices"][0]["finish_reason"])
        assert [one for one in events if "kv_transfer_params" in one] == [last]
        return last["kv_transfer_params"]
    assert events[-1]["type"] == "response.incomplete"
    assert [one for one in events if "kv_transfer_params" in one.get("response", {})] == [events[-1]]
    return events[-1]["response"]["kv_transfer_params"]


@pytest.mark.parametrize("path", [COMPLETIONS, CHATS, RESPONSES])
def test_a_stream_and_a_whole_answer_tell_the_same(driven: ScriptedSite, path: str) -> None:
    worker = driven.worker("prefill:0", role="prefill", peer_endpoint="tcp://127.0.0.1:4567")
    for streamed in (False, True):
        answer = ask(driven, KEEP, path, stream=streamed)
        assert answer.status == 200, answer.body
        told, submit = told_by(path, answer) if streamed else answer.json["kv_transfer_params"], taken(worker)
        assert (submit.phase, told["remote_request_id"]) == ("hold", submit.transfer_id)
        blocks = -(-len(submit.prompt) // 16)
        assert blocks > 1 and told["remote_block_ids"] == [7 + 3 * index for index in range(blocks)]
    for streamed in (False, True):
        answer = ask(driven, KEPT, path, stream=streamed)
        assert answer.status == 200 and b"kv_transfer_params" not in answer.body
        assert taken(worker).phase == "claim"


@pytest.mark.parametrize("streamed", [False, True])
def test_of_a_prompt_that_could_not_be_kept_nothing_is_told(driven: ScriptedSite, streamed: bool) -> None:
    worker = driven.worker("prefill:0", role="prefill", peer_endpoint="tcp://127.0.0.1:4567")
    worker.room_kept = 1
    answer = ask(driven, KEEP, stream=streamed)
    assert answer.status == 200 and b"kv_transfer_params" not in answer.body
    assert taken(worker).phase == "hold"


def test_the_endpoint_of_a_whole_system_is_driven_too(pair: ScriptedSite) -> None:
    """One worker computes and keeps the prompt, another one takes it, whose address a client cannot name."""
    prefill, decode = pair.workers
    told = ask(pair, KEEP).json["kv_transfer_params"]
    held = taken(prefill)
    assert (held.phase, told["remote_engine_id"]) == ("hold", prefill.incarnation)
    assert (told["remote_host"], told["remote_port"]) == (None, None), "it has a socket file"
    for wrong in ({}, {"remote_host": "127.0.0.1", "remote_port": 4567}):
        assert ask(pair, told | wrong, max_tokens=3).status == 200
        claimed = taken(decode)
        assert (claimed.phase, claimed.peer, claimed.transfer_id) == ("claim", prefill.incarnation, held.transfer_id)
        assert claimed.peer_endpoint == prefill.hello_fields["peer_endpoint"]
        assert claimed.peer_blocks == told["remote_block_ids"]
    # Workers of other launches are believed where that was asked for, by --http.
    assert ask(pair, KEPT, max_tokens=3).status == 200
    served = taken(decode), taken(prefill)
    assert all(one.phase != "claim" for one in served)
    assert prefill.submits.empty() and decode.submits.empty()


def test_only_one_role_serves_both(tmp_path: Path, tokenizer: Tokenizer) -> None:
    with site(tmp_path, tokenizer) as mixed:
        worker = mixed.worker()
        told = ask(mixed, KEEP).json["kv_transfer_params"]
        assert taken(worker).phase == "hold"
        assert ask(mixed, told).status == 200 and taken(worker).phase == "claim"


def test_pickers_find_the_series_that_they_read(driven: ScriptedSite) -> None:
    """llm-d's endpoint picker reads these, with the labels of the cache's size."""
    worker = driven.worker()
    worker.free_blocks = 48
    driven.complete("hi", max_tokens=2)
    value = driven.proxy.metrics.registry.get_sample_value
    for name, expected in (("num_requests_running", 0), ("num_requests_waiting", 0)):
        assert value(f"vllm:{name}", {"model_name": "tiny"}) == expected
    assert value("vllm:cache_config_info", {"block_size": "16", "num_gpu_blocks": "64"}) == 1
    text = driven.ask("GET", "/metrics").body.decode()
    assert 'vllm:kv_cache_usage_perc{model_name="tiny"}' in text and "vllm:gpu_cache_usage_perc" in text
