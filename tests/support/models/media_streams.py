# SPDX-License-Identifier: Apache-2.0
"""Streams about recordings and images, which their clients go on with after a break."""

import json
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

from media_questions import QUESTIONS, picture, seen
from picture_origin import PictureOrigin, file
from served import Reply, Served, wait_for

PATH, TOKENS = "/v1/chat/completions", 150
ASKED: dict[str, Any] = {
    "max_tokens": TOKENS, "temperature": 0.9, "seed": 4, "ignore_eos": True, "stream": True,
    "stream_options": {"include_usage": True},
}  # fmt: skip


class ShownStream:
    """The events of a stream as one connection gets them, and the id of the last of them."""

    def __init__(self, reply: Reply) -> None:
        self.reply, self.last, self.text, self.usage = reply, reply.header("x-pontil-stream"), "", None

    def read(self, most: int | None = None) -> "ShownStream":
        """Read so many events, or all that come, and leave."""
        while (most is None or most) and (line := self.reply.response.readline().decode().rstrip("\n")) is not None:
            if not line and self.reply.response.closed:
                break
            if line.startswith("id: "):
                self.last = line[4:]
            elif line == "data: [DONE]":
                break
            elif line.startswith("data: "):
                event = json.loads(line[6:])
                self.usage = event.get("usage") or self.usage
                self.text += "".join(choice["delta"].get("content") or "" for choice in event["choices"])
                most = None if most is None else most - 1
        self.reply.connection.close()
        return self


def begun(served: Served, content: Sequence[Any]) -> ShownStream:
    body = {"messages": [{"role": "user", "content": list(content)}]} | ASKED
    reply = served.request("POST", PATH, body, {"pontil-resume": "1"})
    assert reply.status == 200, reply.text()
    return ShownStream(reply)


def continued(served: Served, event: str | None) -> ShownStream:
    """Go on once a proxy and all stages are there, as a client does."""
    found = list[Reply]()

    def is_there() -> bool:
        try:
            reply = served.request("POST", PATH, {}, {"last-event-id": str(event)})
        except OSError:
            return False
        found.append(reply)
        assert reply.status in (200, 409, 503), reply.text()
        return reply.status == 200

    wait_for(is_there, 60, "the rest of the stream")
    return ShownStream(found[-1])


def check_killed_proxy(served: Served, harm: Callable[[], None] = lambda: None) -> None:
    """Check that the next process of the only proxy goes on with the same tokens, billed once; with `harm` done to
    others in the same moment."""
    content = QUESTIONS["both"].content()
    calm, first = begun(served, content).read(), begun(served, content).read(6)
    victim = served.living("proxy")
    victim.kill()
    harm()
    served.living("proxy", after=victim.pid)
    rest = continued(served, first.last).read()
    assert first.text + rest.text == calm.text and len(first.text) < len(calm.text)
    assert calm.usage is not None and rest.usage is not None
    counted = rest.usage["prompt_tokens_details"] | {"cached_tokens": 0}
    assert counted == calm.usage["prompt_tokens_details"] | {"cached_tokens": 0} and counted["image_tokens"] == 10
    asked = "SELECT state, prompt_tokens, completion_tokens FROM requests WHERE stage IS NULL ORDER BY arrived DESC"
    expected = ("closed", calm.usage["prompt_tokens"], TOKENS)

    def is_billed() -> bool:
        with closing(sqlite3.connect(served.usage_log)) as log:
            return log.execute(f"{asked} LIMIT 2").fetchall() == [expected] * 2

    wait_for(is_billed, 60, "one closed row of each")


def check_changed_image(served: Served, host: PictureOrigin) -> None:
    """Check that a stream is not continued with an image that is another one by now, and is once it is the same."""
    path, one, other = "/resumed.png", picture(64, 96), picture(64, 96)
    host.replies[path] = file(one)
    content = [{"type": "text", "text": "what?"}, {"type": "image_url", "image_url": {"url": f"{host.url}{path}"}}]
    calm, first = begun(served, [content[0], seen(one)]).read(), begun(served, content).read(3)
    host.replies[path] = file(other)

    def is_refused() -> bool:
        reply = served.request("POST", PATH, {}, {"last-event-id": str(first.last)})
        error = reply.json()["error"]
        assert reply.status == 409, error
        return bool(error["code"] == "stream_has_changed" and "an image of this stream" in error["message"])

    wait_for(is_refused, 60, "the refusal")
    host.replies[path] = file(one)
    assert first.text + continued(served, first.last).read().text == calm.text
