# SPDX-License-Identifier: Apache-2.0
"""Files and batches over scripted workers: each line is answered and billed once, whatever it holds."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from batch_asks import CHAT, begun, bills, ended, line, told, upload
from jsonschema import validate
from scripted_site import MODEL, ScriptedSite, site
from scripted_worker import EMBEDDING_SIZE, eventually

from pontil.http.batch import schema
from pontil.runtime.accounting.usage_file import open_to_read
from pontil.runtime.foundation.fair_share import ServiceClass, class_of
from pontil.runtime.tokenizer.tokenizer import Tokenizer


@pytest.fixture
def kept(tmp_path: Path, tokenizer: Tokenizer) -> Iterator[ScriptedSite]:
    with site(tmp_path, tokenizer, usage_log=str(tmp_path / "usage.db")) as made:
        made.worker()
        yield made


def test_each_line_is_answered_and_billed_once(kept: ScriptedSite) -> None:
    batch = begun(kept, [line(f"a{number}") for number in range(40)], metadata={"who": "me"})
    over = ended(kept, batch)
    assert (over["status"], over["metadata"], over["error_file_id"]) == ("completed", {"who": "me"}, None)
    assert over["request_counts"] == {"total": 40, "completed": 40, "failed": 0}
    answers = told(kept, over["output_file_id"])
    assert set(answers) == {f"a{number}" for number in range(40)}
    assert all(one["response"]["status_code"] == 200 and one["error"] is None for one in answers.values())
    assert answers["a3"]["response"]["body"]["choices"][0]["message"]["content"] == "Hello 😀 world"
    assert bills(kept, batch["id"]) == {f"{batch['id']}-{number}": 1 for number in range(1, 41)}


def test_what_is_wrong_with_a_line_is_said_of_it_alone(kept: ScriptedSite) -> None:
    lines: list[Any] = [
        line("good"),
        b"no json\n",
        b"\n",
        line("good"),
        line("other", url="/v1/completions"),
        line("get") | {"method": "GET"},
        line(7),
        line("bare") | {"body": 3},
        line("streams", stream=True),
        line("wrong", temperature=9),
        line("block", messages=[{"role": "user", "content": [{"type": "wobble"}]}]),
        line("last"),
    ]
    over = ended(kept, begun(kept, lines))
    assert over["status"] == "completed" and over["request_counts"] == {"total": 11, "completed": 2, "failed": 9}
    assert set(told(kept, over["output_file_id"])) == {"good", "last"}
    answer = kept.ask("GET", f"/v1/files/{over['error_file_id']}/content")
    errors = [json.loads(one) for one in answer.body.splitlines()]
    codes = [one["error"]["code"] if one["error"] else one["response"]["status_code"] for one in errors]
    assert sorted(map(str, codes)) == sorted(
        [
            "invalid_json_line",
            "duplicate_custom_id",
            "mismatched_url",
            "mismatched_url",
            "invalid_custom_id",
            "invalid_body",
            "invalid_body",
            "400",
            "400",
        ]
    )
    assert "line 2 is no JSON object" in str(errors) and "temperature must be" in str(errors)
    assert "messages[0].content[0].type must be" in str(errors)


@pytest.mark.parametrize(
    ("fields", "status", "says"),
    [
        ({"endpoint": "/v1/images"}, 400, "endpoint must be one of"),
        ({"endpoint": "/v1/embeddings"}, 400, "start the server with --embed"),
        ({"completion_window": "soon"}, 400, "a time like 24h"),
        ({"completion_window": "0h"}, 400, "a time like 24h"),
        ({"input_file_id": "file-1"}, 404, "No such File object"),
        ({"metadata": {"a": 1}}, 400, "metadata may hold 16 texts"),
    ],
)
def test_a_wrong_batch_is_refused_in_a_sentence(
    kept: ScriptedSite, fields: dict[str, Any], status: int, says: str
) -> None:
    file = upload(kept, [line("a")]).json["id"]
    asked = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h"} | fields
    answer = kept.ask("POST", "/v1/batches", asked)
    assert answer.status == status and says in answer.json["error"]["message"], answer.body


def test_files_are_kept_listed_and_deleted(kept: ScriptedSite) -> None:
    first, second = (upload(kept, [line("a")], name=f"{name}.jsonl").json for name in ("one", "two"))
    listed = kept.ask("GET", "/v1/files").json
    validate(listed, schema.FILES)
    assert [one["filename"] for one in listed["data"]] == ["two.jsonl", "one.jsonl"]
    page = kept.ask("GET", f"/v1/files?limit=1&order=asc&after={first['id']}").json
    assert [one["id"] for one in page["data"]] == [second["id"]] and not page["has_more"]
    assert kept.ask("GET", f"/v1/files/{first['id']}").json == first
    assert json.loads(kept.ask("GET", f"/v1/files/{first['id']}/content").body) == line("a")
    assert kept.ask("DELETE", f"/v1/files/{first['id']}").json["deleted"]
    assert kept.ask("GET", f"/v1/files/{first['id']}").status == 404
    folder = Path(f"{kept.proxy.config.usage_log}.batches")
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_wrong_form_is_refused_and_leaves_nothing(kept: ScriptedSite) -> None:
    for answer, says in (
        (upload(kept, [line("a")], purpose="assistants"), "purpose is 'assistants'"),
        (
            kept.ask("POST", "/v1/files", b"--xx\r\n", {"content-type": "multipart/form-data; boundary=xx"}),
            "closing boundary",
        ),
        (kept.ask("POST", "/v1/files", b"{}", {"content-type": "application/json"}), "send multipart/form-data"),
    ):
        assert answer.status in (400, 415) and says in answer.json["error"]["message"], answer.body
    folder = Path(f"{kept.proxy.config.usage_log}.batches")
    assert not [path for path in folder.iterdir() if path.name.startswith("file-")]


def test_a_batch_is_cancelled_and_what_it_did_stays(kept: ScriptedSite) -> None:
    batch = begun(kept, [line(f"a{number}", max_tokens=200) for number in range(300)])
    eventually(lambda: kept.ask("GET", f"/v1/batches/{batch['id']}").json["output_file_id"], "a first answer")
    kept.ask("POST", f"/v1/batches/{batch['id']}/cancel")
    over = ended(kept, batch)
    assert over["status"] == "cancelled" and over["cancelled_at"]
    answers = told(kept, over["output_file_id"])
    assert len(answers) == over["request_counts"]["completed"] < 300
    assert len(bills(kept, batch["id"])) == len(answers)


def test_messages_have_batches_of_their_own(kept: ScriptedSite) -> None:
    def message(name: str, **fields: Any) -> dict[str, Any]:
        return {
            "custom_id": name,
            "params": {"model": MODEL, "max_tokens": 20, "messages": [{"role": "user", "content": "hi"}]} | fields,
        }

    result = {"type": "tool_result", "tool_use_id": "nobody's", "content": "7"}
    unlike = [
        message(name, messages=[{"role": "user", "content": [one]}])
        for name, one in (("c", {"type": "wobble"}), ("d", result))
    ]
    asked = {"requests": [message("a"), message("b", temperature=7), *unlike]}
    batch = kept.ask("POST", "/v1/messages/batches", asked).json
    validate(batch, schema.MESSAGE_BATCH)
    path = f"/v1/messages/batches/{batch['id']}"
    eventually(lambda: kept.ask("GET", path).json["processing_status"] == "ended", "its end")
    over = kept.ask("GET", path).json
    assert over["request_counts"] == {"processing": 0, "succeeded": 1, "errored": 3, "canceled": 0, "expired": 0}
    assert over["results_url"].endswith(f"{path}/results")
    results = {
        one["custom_id"]: one["result"] for one in map(json.loads, kept.ask("GET", f"{path}/results").body.splitlines())
    }
    assert results["a"]["type"] == "succeeded" and results["a"]["message"]["content"][0]["text"] == "Hello 😀 world"
    says = {"b": "temperature", "c": "'wobble'", "d": "tool_use_id"}
    for name, told_of in says.items():
        error = results[name]["error"]
        assert error["type"] == "error" and error["error"]["type"] == "invalid_request_error"
        assert told_of in error["error"]["message"]
    wrongs: list[Any] = ["no object", {"custom_id": "a", "params": "no object"}, {"params": {}}]
    for wrong in wrongs:
        answer = kept.ask("POST", "/v1/messages/batches", {"requests": [message("a"), wrong]})
        assert answer.status == 400 and answer.json["type"] == "error"
        assert answer.json["error"]["message"].startswith("requests[1]")
    listed = kept.ask("GET", "/v1/messages/batches").json
    validate(listed, schema.MESSAGE_BATCHES)
    assert [one["id"] for one in listed["data"]] == [batch["id"]]
    assert (
        not kept.ask("GET", "/v1/batches").json["data"] and kept.ask("GET", f"/v1/batches/{batch['id']}").status == 404
    )
    twice = kept.ask("POST", "/v1/messages/batches", {"requests": [message("a"), message("a")]})
    assert (
        twice.status == 400
        and twice.json["type"] == "error"
        and "an earlier request has" in twice.json["error"]["message"]
    )
    assert kept.ask("DELETE", path).json == {"id": batch["id"], "type": "message_batch_deleted"}
    assert kept.ask("GET", path).status == 404


def test_without_a_usage_log_the_option_is_named(bare: ScriptedSite) -> None:
    for method, path in (("GET", "/v1/files"), ("POST", "/v1/batches"), ("POST", "/v1/messages/batches")):
        answer = bare.ask(method, path, {} if method == "POST" else None)
        assert answer.status == 404 and "--usage-log" in answer.json["error"]["message"]


def test_a_window_that_cannot_be_kept_is_refused(kept: ScriptedSite) -> None:
    kept.complete()
    admission = kept.proxy.admissions.generating
    rate = admission.queue.rate
    rate.stay.value, rate.prompts.computed, rate.prompts.busy = 5000.0, 1e6, 1.0
    file = upload(kept, [line(f"a{number}") for number in range(30)]).json["id"]
    asked = {"input_file_id": file, "endpoint": CHAT, "completion_window": "1h"}
    answer = kept.ask("POST", "/v1/batches", asked)
    assert answer.status == 400 and answer.json["error"]["code"] == "window_too_short", answer.body


def test_a_proxy_that_ends_leaves_the_rest_to_the_next_one(tmp_path: Path, tokenizer: Tokenizer) -> None:
    log = str(tmp_path / "usage.db")
    with site(tmp_path, tokenizer, usage_log=log) as made:
        made.worker()
        batch = begun(made, [line(f"a{number}") for number in range(60)])
        eventually(lambda: made.ask("GET", f"/v1/batches/{batch['id']}").json["output_file_id"], "a first answer")
    with site(tmp_path, tokenizer, usage_log=log) as made:
        made.worker()
        over = ended(made, batch)
        assert over["request_counts"] == {"total": 60, "completed": 60, "failed": 0}
        assert len(told(made, over["output_file_id"])) == 60
        assert bills(made, batch["id"]) == {f"{batch['id']}-{number}": 1 for number in range(1, 61)}


def test_each_endpoint_of_lines_is_asked(tmp_path: Path, tokenizer: Tokenizer) -> None:
    vectors = {"served_embedding_model_name": "vectors", "embedding_model": "vectors"}
    with site(tmp_path, tokenizer, usage_log=str(tmp_path / "usage.db"), **vectors) as made:
        made.worker()
        made.worker(
            "embed:0",
            model="vectors",
            model_fingerprint="v",
            kv_fingerprint="",
            embedding_size=EMBEDDING_SIZE,
            max_model_len=32,
            block_size=32,
        )
        for url, body in (
            ("/v1/completions", {"prompt": ["a", "b"]}),
            ("/v1/responses", {"input": "hi"}),
            ("/v1/embeddings", {"input": [[1], [2, 3]]}),
        ):
            asked = {"custom_id": "a", "method": "POST", "url": url, "body": body}
            over = ended(made, begun(made, [asked], endpoint=url))
            (answer,) = told(made, over["output_file_id"]).values()
            assert answer["response"]["body"]["object"] in ("text_completion", "response", "list")
            assert answer["response"]["body"]["usage"]
        with closing(open_to_read(tmp_path / "usage.db")) as log:
            rows = log.execute("SELECT finish FROM requests").fetchall()
        assert len(rows) == 5, "a row for each prompt"


def test_files_and_batches_are_a_keys_own(tmp_path: Path, tokenizer: Tokenizer) -> None:
    callers = tuple((name, hashlib.sha256(f"key-{name}".encode()).hexdigest()) for name in "ab")
    with site(tmp_path, tokenizer, usage_log=str(tmp_path / "usage.db"), callers=callers) as made:
        made.worker()
        own, other = ({"authorization": f"Bearer key-{name}"} for name in "ab")
        asked = {
            "requests": [
                {"custom_id": "a", "params": {"max_tokens": 3, "messages": [{"role": "user", "content": "a"}]}}
            ]
        }
        batch = made.ask("POST", "/v1/messages/batches", asked, own).json["id"]
        path = f"/v1/messages/batches/{batch}"
        eventually(lambda: made.ask("GET", path, None, own).json["processing_status"] == "ended", "its end")
        for method, at in (("GET", path), ("GET", f"{path}/results"), ("POST", f"{path}/cancel"), ("DELETE", path)):
            answer = made.ask(method, at, None, other)
            assert answer.status == 404 and answer.json["error"]["type"] == "not_found_error"
        assert not made.ask("GET", "/v1/messages/batches", None, other).json["data"]
        with closing(open_to_read(tmp_path / "usage.db")) as log:
            assert log.execute("SELECT api_key FROM requests").fetchall() == [("a",)]


def test_lines_are_of_the_class_batch_whatever_that_of_their_key(tmp_path: Path, tokenizer: Tokenizer) -> None:
    callers = (("a", hashlib.sha256(b"key-a").hexdigest()),)
    allowances = (("a", (("class", "interactive"), ("share", 3.0))),)
    log = str(tmp_path / "usage.db")
    with site(tmp_path, tokenizer, usage_log=log, callers=callers, allowances=allowances) as made:
        worker = made.worker()
        params = {"max_tokens": 3, "service_tier": "auto", "messages": [{"role": "user", "content": "a"}]}
        own = {"authorization": "Bearer key-a"}
        batch = made.ask("POST", "/v1/messages/batches", {"requests": [{"custom_id": "a", "params": params}]}, own)
        path = f"/v1/messages/batches/{batch.json['id']}"
        eventually(lambda: made.ask("GET", path, None, own).json["processing_status"] == "ended", "its end")
        (row,) = [json.loads(text) for text in made.ask("GET", f"{path}/results", None, own).body.splitlines()]
        usage = row["result"]["message"]["usage"]
        assert (usage["service_tier"], usage["share"]) == ("batch", 3.0)
        assert class_of(worker.submits.get_nowait().priority) is ServiceClass.BATCH


def test_a_line_goes_on_when_its_worker_dies(kept: ScriptedSite) -> None:
    batch = begun(kept, [line(f"a{number}") for number in range(30)])
    eventually(lambda: kept.ask("GET", f"/v1/batches/{batch['id']}").json["output_file_id"], "a first answer")
    kept.workers[0].fall_silent(kept.proxy.registry)
    kept.worker("mixed:1")
    over = ended(kept, batch)
    assert over["request_counts"] == {"total": 30, "completed": 30, "failed": 0}
    assert bills(kept, batch["id"]) == {f"{batch['id']}-{number}": 1 for number in range(1, 31)}


def test_a_proxy_takes_what_another_one_leaves(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """One of two proxies runs all batches; when it ends the other one goes on."""
    shared = {"usage_log": str(tmp_path / "usage.db"), "shared_folder": str(tmp_path / "shared"), "proxies": 2}
    folders = tmp_path / "1", tmp_path / "2"
    for folder in folders:
        folder.mkdir()
    with site(folders[1], tokenizer, name="proxy:1", number=1, **shared) as second:
        second.worker("mixed:1")
        with site(folders[0], tokenizer, name="proxy:0", number=0, **shared) as first:
            first.worker("mixed:0")
            batch = begun(first, [line(f"a{number}") for number in range(60)])
            path = f"/v1/batches/{batch['id']}"
            eventually(lambda: second.ask("GET", path).json["output_file_id"], "a first answer")
        over = ended(second, batch)
        assert over["request_counts"]["completed"] == 60
        assert bills(second, batch["id"]) == {f"{batch['id']}-{number}": 1 for number in range(1, 61)}
