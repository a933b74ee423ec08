# SPDX-License-Identifier: Apache-2.0
"""The Responses API, as the official client reads it; its types check every event."""

import hashlib
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jsonschema
import openai
import pydantic
import pytest
from responses_client import ask, both, client, events_of
from saying_sites import Sites
from scripted_site import MODEL, ScriptedSite, site
from scripted_worker import ScriptedWorker
from small_disk import filled, needed_disk

from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.wire.messages import Failed, Message, Submit

TEXT = "Hello 😀 world"
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS: list[Any] = [{"type": "function", "name": "weather", "description": "of a city", "parameters": PARAMETERS}]
ROME, OSLO = '{"city": "Rome"}', '{ "city":"Øslo" }'
CALLS = (
    f'<tool_call>\n{{"name": "weather", "arguments": {ROME}}}\n</tool_call>\n'
    f'<tool_call>\n{{"name": "weather", "arguments": {OSLO}}}\n</tool_call>'
)
THOUGHT = "<think>\nTwo cities.\n</think>\n\n"
UNKNOWN = f"resp_{'0' * 32}"


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Iterator[ScriptedSite]:
    folder = tmp_path_factory.mktemp("kept")
    with site(folder, tokenizer, response_store=str(folder / "responses.db")) as made:
        made.pair()
        yield made


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    folder = tmp_path_factory.mktemp("sites")
    with ExitStack() as stack:
        yield Sites(folder, stack, response_store=str(folder / "responses.db"))


def prompt_of(served: ScriptedSite) -> str:
    return served.tokenizer.decode(served.last_submit().prompt, skip_special_tokens=False)


def test_a_text_and_its_usage(kept: ScriptedSite) -> None:
    answer = ask(kept, instructions="be brief", metadata={"a": "b"}, temperature=0)
    assert answer.output_text == TEXT and answer.status == "completed" and answer.error is None
    assert answer.instructions == "be brief" and answer.metadata == {"a": "b"} and answer.temperature == 0
    usage = answer.usage
    assert usage is not None and usage.output_tokens == 15 and usage.output_tokens_details.reasoning_tokens == 0
    assert usage.total_tokens == usage.input_tokens + 15 and usage.input_tokens_details.cached_tokens == 0
    chat = client(kept).chat.completions.create(
        model=MODEL, messages=[{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    )
    assert chat.usage is not None and chat.usage.prompt_tokens == usage.input_tokens
    counted = client(kept).responses.input_tokens.count(model=MODEL, input="hi", instructions="be brief")
    assert counted.input_tokens == usage.input_tokens


def test_the_events_of_a_text(kept: ScriptedSite) -> None:  # F4
    events = events_of(kept)
    kinds = [event["type"].removeprefix("response.") for event in events if not event["type"].endswith("text.delta")]
    assert kinds == [
        "created", "in_progress", "output_item.added", "content_part.added", "output_text.done", "content_part.done",
        "output_item.done", "completed",
    ]  # fmt: skip
    assert "".join(event.get("delta", "") for event in events) == TEXT
    assert events[0]["response"]["status"] == "in_progress" and events[0]["response"]["usage"] is None
    assert both(kept)["output"][0]["content"][0]["text"] == TEXT


def test_the_official_helper_puts_a_stream_together(sites: Sites) -> None:
    served = sites.saying("qwen", f"{THOUGHT}I look.\n{CALLS}")
    strict: list[Any] = [TOOLS[0] | {"strict": True}]
    with client(served).responses.stream(model=MODEL, input="hi", tools=strict) as stream:
        seen = [event.type for event in stream]
        answer = stream.get_final_response()
    assert seen[0] == "response.created" and seen[-1] == "response.completed"
    thought, text, *calls = answer.output
    assert thought.type == "reasoning" and thought.content is not None and thought.content[0].text == "Two cities."
    assert answer.output_text == "I look." and text.type == "message"
    found = [call.parsed_arguments for call in calls if call.type == "function_call"]
    assert found == [{"city": "Rome"}, {"city": "Øslo"}]
    assert answer.usage is not None and answer.usage.output_tokens_details.reasoning_tokens > 0


def test_calls_and_reasoning_whole_and_streamed(sites: Sites) -> None:
    answer = both(sites.saying("qwen", f"{THOUGHT}I look.\n{CALLS}"), tools=TOOLS)
    assert [item["type"] for item in answer["output"]] == ["reasoning", "message", "function_call", "function_call"]
    assert [item.get("arguments") for item in answer["output"]][2:] == [ROME, OSLO]
    assert {item["status"] for item in answer["output"]} == {"completed"}


def test_custom_tools_and_namespaces_are_called_by_their_own_names(sites: Sites) -> None:
    """So Codex sends its tools. A custom tool's call has a text in place of arguments."""
    inner = [{"type": "function", "name": "read", "parameters": PARAMETERS}]
    tools = [
        {"type": "custom", "name": "patch", "description": "edits"},
        {"type": "namespace", "name": "files", "description": "of files", "tools": inner},
        {"type": "web_search"},
    ]
    calls = [("patch", '{"input": "*** Begin\\n+é"}'), ("files.read", ROME), ("patch", '{"city": 1}')]
    told = "\n".join(f'<tool_call>\n{{"name": "{name}", "arguments": {said}}}\n</tool_call>' for name, said in calls)
    served = sites.saying("qwen", told)
    custom, function, odd = both(served, tools=tools)["output"]
    assert (custom["type"], custom["name"], custom["input"]) == ("custom_tool_call", "patch", "*** Begin\n+é")
    assert (function["name"], function["namespace"], function["arguments"]) == ("read", "files", ROME)
    assert odd["input"] == '{"city": 1}', "no argument of that name: all of them"
    events = [event for event in events_of(served, tools=tools) if "custom_tool_call_input" in event["type"]]
    assert [event.get("delta", event.get("input")) for event in events[:2]] == ["*** Begin\n+é"] * 2
    answer = served.ask("POST", "/v1/responses", {"model": MODEL, "input": "hi", "tools": tools})
    assert answer.headers["x-pontil-ignored"] == "tools[].web_search"


@pytest.mark.parametrize("most", [1, 12, 40])
def test_an_answer_that_is_cut(sites: Sites, most: int) -> None:
    answer = both(sites.saying("qwen", f"{THOUGHT}{CALLS}"), tools=TOOLS, max_output_tokens=most)
    assert answer["status"] == "incomplete" and answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert answer["output"][-1]["status"] == "incomplete" and answer["usage"]["output_tokens"] == most


def test_structured_output(sites: Sites) -> None:
    class City(pydantic.BaseModel):
        name: str

    served = sites.saying("llama", '{"name": "Rome"}')
    while not served.workers[0].submits.empty():
        served.workers[0].submits.get()
    answer = client(served).responses.parse(model=MODEL, input="hi", text_format=City)
    assert answer.output_parsed == City(name="Rome")
    assert served.workers[0].submits.get(timeout=60).sampling["grammar"] is not None


def test_a_conversation_goes_on(sites: Sites) -> None:
    """Kept items read like those that a client sends whole."""
    served = sites.saying("qwen", f"{THOUGHT}I look.\n{CALLS}")
    made = client(served).responses
    first = made.create(model=MODEL, input="Rome?", instructions="Be brief.", tools=TOOLS)
    results: list[Any] = [{"type": "function_call_output", "call_id": call.call_id, "output": "7°"}
                          for call in first.output if call.type == "function_call"]  # fmt: skip
    second = made.create(model=MODEL, input=results, previous_response_id=first.id, tools=TOOLS)
    by_id = prompt_of(served)
    sent: list[Any] = [{"role": "user", "content": "Rome?"}, *(one.model_dump() for one in first.output), *results]
    made.create(model=MODEL, input=sent, tools=TOOLS)
    assert prompt_of(served) == by_id and by_id.count("7°") == 2 and "Be brief." not in by_id
    references: list[Any] = [{"type": "item_reference", "id": one.id} for one in first.output]
    made.create(model=MODEL, input=[sent[0], *references, *results], tools=TOOLS)
    assert prompt_of(served) == by_id
    assert second.previous_response_id == first.id
    listed = [item.type for item in made.input_items.list(second.id, order="asc", limit=100)]
    assert listed == ["message", "reasoning", "message", "function_call", "function_call",
                      "function_call_output", "function_call_output"]  # fmt: skip


def test_input_items_in_pages(kept: ScriptedSite) -> None:
    answer = ask(kept, input=[{"role": "user", "content": str(number)} for number in range(5)])
    listed: Any = client(kept).responses.input_items.list(answer.id, limit=2, order="asc")
    assert [item.content[0].text for item in listed] == list("01234"), "the client asks for further pages"
    assert [item.content[0].text for item in listed.data] == ["0", "1"] and listed.has_more
    newest: Any = client(kept).responses.input_items.list(answer.id, limit=1)
    assert newest.data[0].content[0].text == "4"
    for query in ("limit=0", "limit=x", "order=up", "limit=9999"):
        assert kept.ask("GET", f"/v1/responses/{answer.id}/input_items?{query}").status == 400
    assert kept.ask("GET", f"/v1/responses/{answer.id}/input_items?after=none").status == 404


def test_a_kept_response_is_what_was_sent(kept: ScriptedSite) -> None:
    made = client(kept).responses
    answer = ask(kept, text={"verbosity": "low"}, metadata={"a": "é"})
    assert answer.to_dict()["store"] is True
    assert made.retrieve(answer.id).to_dict() == answer.to_dict()
    last = events_of(kept)[-1]["response"]
    assert kept.ask("GET", f"/v1/responses/{last['id']}").json == last
    made.delete(answer.id)
    for again in (made.retrieve, made.delete, made.cancel):
        with pytest.raises(openai.NotFoundError, match=f"Response with id '{answer.id}' not found"):
            again(answer.id)
    with pytest.raises(openai.NotFoundError, match="Previous response with id") as caught:
        ask(kept, previous_response_id=answer.id)
    assert caught.value.param == "previous_response_id" and caught.value.code == "previous_response_not_found"


@pytest.mark.parametrize("streamed", [False, True])
def test_where_a_prompt_is_kept_is_told_and_not_stored(kept: ScriptedSite, streamed: bool) -> None:
    """It is for the router that asked, once, and names hosts inside the system."""
    keeping = {"do_remote_decode": True, "do_remote_prefill": False}
    body = {"input": "hi", "max_output_tokens": 1, "stream": streamed, "kv_transfer_params": keeping}
    answer = kept.ask("POST", "/v1/responses", body)
    sent = answer.events[-1]["response"] if streamed else answer.json
    assert sent["store"] and sent.pop("kv_transfer_params")["remote_request_id"]
    assert kept.ask("GET", f"/v1/responses/{sent['id']}").json == sent


def test_a_complete_response_cannot_be_cancelled_or_streamed_again(kept: ScriptedSite) -> None:
    answer = ask(kept)
    with pytest.raises(openai.BadRequestError, match="Cannot cancel a synchronous response"):
        client(kept).responses.cancel(answer.id)
    with pytest.raises(openai.BadRequestError, match="stream"):
        client(kept).responses.retrieve(answer.id, stream=True)


def test_store_false_keeps_nothing(kept: ScriptedSite) -> None:
    answer = ask(kept, store=False)
    assert answer.to_dict()["store"] is False
    with pytest.raises(openai.NotFoundError):
        client(kept).responses.retrieve(answer.id)
    item = {"type": "item_reference", "id": answer.output[0].id}
    with pytest.raises(openai.NotFoundError, match=f"Item with id '{item['id']}' not found"):
        ask(kept, input=[item])


def test_without_a_store_the_rest_works(pair: ScriptedSite) -> None:
    answer = ask(pair)
    assert answer.output_text == TEXT and answer.to_dict()["store"] is False
    with pytest.raises(openai.NotFoundError, match="keeps no responses"):
        ask(pair, previous_response_id=answer.id)


@pytest.mark.parametrize("name", ["x", "resp_1", UNKNOWN, f"{UNKNOWN}\0", "resp_" + "é" * 32, "a" * 5000, "../.."])
def test_hostile_ids_are_not_found(kept: ScriptedSite, name: str) -> None:  # F3
    for method, behind in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
        path = f"/v1/responses/{quote(name)}{behind}"
        assert kept.ask(method, path).status == 404, (method, behind)
    assert kept.ask("POST", "/v1/responses", {"input": "x", "previous_response_id": name}).status == 404


def test_keys_do_not_see_each_others_responses(tmp_path: Path, tokenizer: Tokenizer) -> None:  # F5
    callers = tuple((name, hashlib.sha256(name.encode()).hexdigest()) for name in ("anna", "bert"))
    with site(tmp_path, tokenizer, callers=callers, response_store=str(tmp_path / "responses.db")) as served:
        served.worker()
        anna, bert = client(served, "anna").responses, client(served, "bert").responses
        answer = anna.create(model=MODEL, input="hi")
        item: Any = {"type": "item_reference", "id": answer.output[0].id}
        calls: list[Callable[[], object]] = [
            lambda: bert.retrieve(answer.id),
            lambda: bert.delete(answer.id),
            lambda: bert.input_items.list(answer.id),
            lambda: bert.create(model=MODEL, input="x", previous_response_id=answer.id),
            lambda: bert.create(model=MODEL, input=[item]),
        ]
        for call in calls:
            with pytest.raises(openai.NotFoundError):
                call()
        assert anna.retrieve(answer.id).id == answer.id
        with pytest.raises(openai.AuthenticationError):
            client(served, "nobody").responses.retrieve(answer.id)


def test_an_unusable_file_is_no_reason_not_to_serve(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "responses.db").write_text("something else " * 100)
    with site(tmp_path, tokenizer, response_store=str(tmp_path / "responses.db")) as served:
        served.worker()
        assert ask(served).output_text == TEXT
    assert (tmp_path / "responses.db").read_text().startswith("something else")


def test_a_file_that_fails_later(
    tmp_path: Path, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    """Answers come without being kept; what needs it is 503."""
    with site(tmp_path, tokenizer, response_store=str(tmp_path / "responses.db")) as served:
        served.worker()
        answer = ask(served)
        with closing(sqlite3.connect(tmp_path / "responses.db")) as other, other:
            other.execute("DROP TABLE responses")
        assert ask(served).output_text == TEXT
        assert "is not kept" in caplog.text
        with pytest.raises(openai.InternalServerError, match="try again in a moment"):
            client(served).responses.retrieve(answer.id)


@pytest.mark.parametrize("begins_full", [False, True])
def test_what_a_full_disk_does_not_keep_is_said_in_the_answer(
    tmp_path: Path, tokenizer: Tokenizer, begins_full: bool
) -> None:
    """Also of a server that started on the full disk. Once there is room, responses are kept."""
    with needed_disk(tmp_path) as disk, ExitStack() as stack:
        full = ExitStack()
        if begins_full:
            full.enter_context(filled(disk))
        served = stack.enter_context(site(tmp_path, tokenizer, response_store=str(disk / "responses.db")))
        served.worker()
        with full:
            if not begins_full:
                assert ask(served).to_dict()["store"] is True
                full.enter_context(filled(disk))
            whole: dict[str, Any] = ask(served).to_dict()
            streamed = events_of(served)[-1]["response"]
            assert (whole["status"], whole["store"]) == (streamed["status"], streamed["store"]) == ("completed", False)
            with pytest.raises(openai.APIStatusError):
                client(served).responses.retrieve(whole["id"])
        answer = ask(served)
        assert answer.to_dict()["store"] is True
        assert client(served).responses.retrieve(answer.id).to_dict() == answer.to_dict()


def test_mistakes_have_openais_shape(kept: ScriptedSite) -> None:  # F3
    with pytest.raises(openai.NotFoundError, match="no model 'nobody'"):
        ask(kept, model="nobody", previous_response_id=UNKNOWN)
    with pytest.raises(openai.BadRequestError) as caught:
        ask(kept, tool_choice={"type": "web_search"})
    assert caught.value.param == "tool_choice.type" and caught.value.code == "unsupported_parameter"
    for wrong, param in (
        ({"type": "wobble"}, "input[0].type"),
        ({"role": "user", "content": [{"type": "wobble"}]}, "input[0].content[0].type"),
    ):
        with pytest.raises(openai.BadRequestError, match="wobble") as caught:
            ask(kept, input=[wrong])
        assert caught.value.param == param and caught.value.code == "unsupported_parameter"
    with pytest.raises(openai.BadRequestError) as caught:
        ask(kept, input="x" * 5000)
    assert caught.value.param == "input" and caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as caught:
        ask(kept, max_output_tokens=5000)
    assert caught.value.param == "max_output_tokens"


def test_logprobs_of_a_text(kept: ScriptedSite) -> None:
    fields: dict[str, Any] = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    answer = both(kept, **fields)
    (part,) = answer["output"][0]["content"]
    assert len(part["logprobs"]) == answer["usage"]["output_tokens"] and len(part["logprobs"][0]["top_logprobs"]) == 2
    assert answer["top_logprobs"] == 2
    deltas = [event["logprobs"] for event in events_of(kept, **fields) if event["type"].endswith("text.delta")]
    assert sum(deltas, []) == part["logprobs"][: len(sum(deltas, []))]


def test_logprobs_are_those_of_the_text(sites: Sites) -> None:
    """Tokens of reasoning and calls have none. A token here is a byte."""
    served = sites.saying("qwen", f"{THOUGHT}I løøk.\n{CALLS}")
    fields: dict[str, Any] = {"include": ["message.output_text.logprobs"], "tools": TOOLS}
    answer = both(served, **fields)
    (part,) = answer["output"][1]["content"]
    assert (
        part["text"] == "I løøk." and bytes(sum((one["bytes"] for one in part["logprobs"]), [])) == "I løøk.".encode()
    )
    (part,) = both(sites.saying("qwen", f"{THOUGHT}I look at it"), **fields, stop="at")["output"][1]["content"]
    assert part["text"] == "I look " and part["logprobs"][0]["token"] == "I"


def test_a_stream_that_breaks(bare: ScriptedSite) -> None:  # F4
    def breaks(worker: ScriptedWorker, submit: Submit) -> Iterator[Message]:
        yield worker.tokens(submit, 0, [40])
        bare.wait_for_readers()
        yield Failed(worker.incarnation, worker.proxy, submit.request_id, submit.attempt, "no", 503)

    bare.worker(script=breaks)
    *_, error, failed = events_of(bare)
    assert error["type"] == "error" and error["message"] == error["error"]["message"]
    assert failed["type"] == "response.failed" and failed["response"]["status"] == "failed"
    assert failed["response"]["error"] == {"code": "server_error", "message": error["message"]}
    with pytest.raises(openai.APIError, match="attempt 1 of 1"):
        list(client(bare).responses.create(model=MODEL, input="hi", stream=True))


def test_replies_are_as_the_document_says(sites: Sites, kept: ScriptedSite) -> None:
    for served, fields in (
        (sites.saying("qwen", f"{THOUGHT}I look.\n{CALLS}"), {"tools": TOOLS, "tool_choice": "auto"}),
        (kept, {"top_logprobs": 1, "max_output_tokens": 3, "previous_response_id": ask(kept).id}),
    ):
        document = served.ask("GET", "/openapi.json").json
        components = {"components": document["components"]}
        path = document["paths"]["/v1/responses"]["post"]["responses"]["200"]["content"]
        events = events_of(served, **fields)
        kind = path["text/event-stream"]["itemSchema"]["else"]["properties"]["data"]["contentSchema"]
        for event in events:
            jsonschema.Draft202012Validator(kind | components).validate(event)
        last = events[-1]["response"]
        jsonschema.validate(last, path["application/json"]["schema"])
        items = served.ask("GET", f"/v1/responses/{last['id']}/input_items").json
        described = document["paths"]["/v1/responses/{response_id}/input_items"]["get"]["responses"]["200"]
        jsonschema.validate(items, described["content"]["application/json"]["schema"])
        assert items["data"]
