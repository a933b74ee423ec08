# SPDX-License-Identifier: Apache-2.0
"""Questions about images at addresses on the network, to a site that fetches from one host."""

import http.client
import json
import sqlite3
from contextlib import closing
from typing import Any

from media_questions import QUESTIONS, TOKENS, answered, ask
from picture_bombs import png
from picture_origin import PictureOrigin, endless, file, moved, reply, silent
from served import Served, wait_for

QUESTION = QUESTIONS["images"]
SECRET = "sign=never-to-be-logged"


def placed(host: PictureOrigin) -> list[str | None]:
    """Put the images of the question at the host; return the address of each part that is one."""
    urls = list[str | None]()
    for index, part in enumerate(QUESTION.parts):
        path = f"/{index}.png?{SECRET}"
        if isinstance(part, bytes):
            host.replies |= {path: file(part), f"/moved/{index}": moved(path)}
        urls.append(f"{host.url}/moved/{index}" if index > 2 else f"{host.url}{path}")
    return [url if isinstance(part, bytes) else None for url, part in zip(urls, QUESTION.parts, strict=True)]


def check_linked(served: Served, host: PictureOrigin) -> None:
    """Check that all three APIs answer about images that they fetch as about those that they are sent, with the same
    counts."""
    sent, urls = ask(served, QUESTION), placed(host)
    pairs = [*zip(QUESTION.parts, urls, strict=True)]
    text, details = sent["choices"][0]["message"]["content"], sent["usage"]["prompt_tokens_details"]
    parts = [
        {"type": "image_url", "image_url": {"url": url}} if url else {"type": "text", "text": part}
        for part, url in pairs
    ]
    asked: dict[str, Any] = {"max_tokens": TOKENS, "temperature": 0}
    chat = answered(served, "/v1/chat/completions", {"messages": [{"role": "user", "content": parts}]} | asked)
    assert chat["choices"] == sent["choices"] and counts(chat) == counts(sent) and details["image_tokens"] > 0
    shown = [
        {"type": "input_image", "image_url": url} if url else {"type": "input_text", "text": part}
        for part, url in pairs
    ]
    response = {"input": [{"role": "user", "content": shown}], "max_output_tokens": TOKENS, "temperature": 0}
    first = answered(served, "/v1/responses", response)
    assert first["output"][0]["content"][0]["text"] == text
    assert first["usage"]["input_tokens_details"]["image_tokens"] == details["image_tokens"]
    # A later turn fetches again: what is kept of a response has the address.
    before = len(host.asked)
    later = answered(
        served, "/v1/responses", {"input": "again", "previous_response_id": first["id"]} | {"temperature": 0}
    )
    assert later["usage"]["input_tokens_details"]["image_tokens"] == details["image_tokens"]
    assert len(host.asked) > before
    blocks = [
        {"type": "image", "source": {"type": "url", "url": url}} if url else {"type": "text", "text": part}
        for part, url in pairs
    ]
    turn = {"messages": [{"role": "user", "content": blocks}]}
    message = answered(served, "/v1/messages", turn | asked)
    assert message["content"][0]["text"] == text
    # The pictures are a part of the prefix: what was sent before is found by those that are fetched.
    cached = message["usage"]["cache_read_input_tokens"]
    assert cached > details["image_tokens"]
    assert message["usage"]["input_tokens"] + cached == sent["usage"]["prompt_tokens"]
    assert answered(served, "/v1/messages/count_tokens", turn) == {"input_tokens": sent["usage"]["prompt_tokens"]}
    assert SECRET not in served.output.read_text()
    with closing(sqlite3.connect(served.usage_log)) as log:
        rows = log.execute("SELECT image_tokens FROM requests WHERE stage IS NULL ORDER BY arrived DESC LIMIT 4")
        assert rows.fetchall() == [(details["image_tokens"],)] * 4, "of chat, responses and message alike"


def counts(answer: dict[str, Any]) -> tuple[int, int, int]:
    usage = answer["usage"]
    images = usage["prompt_tokens_details"]["image_tokens"]
    return usage["prompt_tokens"], usage["completion_tokens"], images


def asking(url: str) -> dict[str, Any]:
    parts = [{"type": "text", "text": "what is this?"}, {"type": "image_url", "image_url": {"url": url}}]
    return {"messages": [{"role": "user", "content": parts}], "max_tokens": TOKENS}


def check_refusals(served: Served, host: PictureOrigin) -> None:
    """Check that what cannot be fetched or read is one sentence, with its place, and that nothing is lost: the process
    that decodes is the one of before."""
    host.replies |= {
        "/bomb.png": file(png(60_000, 60_000)),
        "/page": file(b"<html>"),
        "/endless": endless,
        "/away": moved(f"http://169.254.169.254/?{SECRET}"),
        "/gone": reply("410 Gone", Content_Length="0"),
    }
    decoders = decoding(served)
    assert len(decoders) == 1
    for url, says in (
        (f"{host.url}/bomb.png", "cannot be read: an image of 60000 by 60000 pixels is too large"),
        (f"{host.url}/page", "is no PNG or JPEG file"),
        (f"{host.url}/endless", "is larger than 20971520 bytes"),
        (f"{host.url}/away", "is redirected to one that names the host '169.254.169.254'"),
        (f"{host.url}/gone", "was answered with the status 410"),
        ("http://127.0.0.1:1/", "names the host '127.0.0.1:1', from which this server fetches no images"),
        (f"http://localhost:{host.port}/", "from which this server fetches no images"),
        ("http://169.254.169.254/", "from which this server fetches no images"),
        (f"http://user:word@127.0.0.1:{host.port}/", "must have no user or password"),
    ):
        answer = served.request("POST", "/v1/chat/completions", asking(url))
        error = answer.json()["error"]
        assert answer.status == 400 and error["param"] == "messages[0].content[1].image_url.url", error
        assert says in error["message"] and SECRET not in error["message"], error
    assert decoding(served) == decoders
    assert ask(served, QUESTION)["usage"]["completion_tokens"]


def decoding(served: Served) -> list[int]:
    return [one.pid for one in served.tree() if "pontil.runtime.stages.media.child" in " ".join(one.cmdline())]


def check_leaving(served: Served, host: PictureOrigin) -> None:
    """Check that a fetch ends with its client."""
    host.replies["/silent"] = silent
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
    body = json.dumps(asking(f"{host.url}/silent"))
    connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
    wait_for(lambda: "/silent" in host.paths, 30, "the question for the image")
    connection.close()
    # Long before the reply would have to begin.
    wait_for(lambda: not host.open, 3, "the end of the fetch")
