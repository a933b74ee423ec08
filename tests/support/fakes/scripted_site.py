# SPDX-License-Identifier: Apache-2.0
"""The whole HTTP side over real sockets in one process: the sanic app in a thread, with scripted workers behind it."""

import asyncio
import http.client
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from proxy_configs import bare_config
from routes_once import compile_routes_once
from scripted_worker import DEADLINE, ScriptedWorker, eventually

from pontil.http.openai.chat import prompt_reader
from pontil.http.server.service import BACKLOG, build_app, load_pairs
from pontil.http.server.timed_protocol import TimedProtocol
from pontil.runtime.chat.chat_template import ChatTemplate
from pontil.runtime.proxy.proxy import NO_MORE, Proxy
from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.wire.messages import Submit

MODEL = "tiny"
# Hundreds of sites begin in one process. They have few templates among them, which threads may share.
compile_routes_once()
compiled = cache(lambda source, tokens: ChatTemplate(source, dict(tokens)))
setattr(prompt_reader, ChatTemplate.__name__, lambda source, tokens: compiled(source, tuple(tokens.items())))


class HttpAnswer:
    """One response, read whole."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """The data of a stream's events; "[DONE]" stays a string."""
        lines = [line[6:] for line in self.body.decode().split("\n") if line.startswith("data: ")]
        return [line if line == "[DONE]" else json.loads(line) for line in lines]

    @property
    def text(self) -> str:
        """The text of a stream's first choice."""
        choices = [choice for event in self.events if event != "[DONE]" for choice in event.get("choices", ())]
        return "".join(
            choice.get("text", "") + (choice.get("delta", {}).get("content") or "")
            for choice in choices
            if choice["index"] == 0
        )


def refused(answer: HttpAnswer, status: int, code: str) -> str:
    """Return the sentence of a refusal. Those of Anthropic's and Ollama's paths have their shapes, without codes."""
    error = answer.json["error"]
    assert answer.status == status, answer.body
    if isinstance(error, str):
        error = {"message": error}
    elif "type" in answer.json:
        assert error["type"] == "authentication_error" and answer.json["request_id"] == answer.headers["request-id"]
    else:
        assert (error["code"], error["param"]) == (code, None), answer.body
    assert answer.headers["x-request-id"] and answer.headers["content-type"] == "application/json"
    return str(error["message"])


class ScriptedSite:
    """A served proxy at 127.0.0.1:`port`."""

    def __init__(
        self, folder: Path, tokenizer: Tokenizer, further: Mapping[str, Tokenizer] = NO_MORE, /, **config: Any
    ) -> None:
        control = f"ipc://{folder}/control"
        self.proxy = Proxy(bare_config(control, model=MODEL, version="1.2.3", **config), tokenizer, further=further)
        self.tokenizer = tokenizer
        self.endpoint = self.proxy.bind()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.workers: list[ScriptedWorker] = []
        self.loop = asyncio.new_event_loop()
        self.stopping = asyncio.Event()
        self.serving = threading.Event()
        self.thread = threading.Thread(target=lambda: self.loop.run_until_complete(self.serve()), daemon=True)

    def last_submit(self) -> Submit:
        """Return what the last worker got last. It is the one that ends answers: the request of an answer that has
        ended is here, which that of another worker may not be."""
        submits = self.workers[-1].submits
        last = submits.get(timeout=DEADLINE)
        while not submits.empty():
            last = submits.get()
        return last

    def wait_for_readers(self) -> None:
        """Wait until the clients of all requests, which are streamed, have a part of their answers: what fails before
        is an error with a status."""
        eventually(
            lambda: all(
                one.mailbox.whole is not None and one.mailbox.whole.begun for one in [*self.proxy.requests.values()]
            ),
            "the first bytes of each stream",
        )

    async def serve(self) -> None:
        embedding = self.tokenizer if self.proxy.config.served_embedding_model_name else None
        ranker = self.proxy.config.reranking_model
        app = build_app(self.proxy, embedding, None if ranker is None else load_pairs(Path(ranker), None))
        # For the first app of a process Sanic rewrites its own classes, which breaks later apps.
        app.config.TOUCHUP = False
        server: Any = await app.create_server(
            sock=self.listener, return_asyncio_server=True, protocol=TimedProtocol, backlog=BACKLOG
        )
        await server.startup()
        self.proxy.start()
        self.serving.set()
        await self.stopping.wait()
        await server.close()
        for connection in list(server.connections):
            connection.abort()
        await server.after_stop()
        await self.proxy.close()
        # Sanic keeps each app of a process, and each route that was asked for: hundreds would be millions of objects.
        app.unregister_app(app)
        app.router.get.cache_clear()

    def stop(self) -> None:
        for worker in self.workers:
            worker.die()
        self.loop.call_soon_threadsafe(self.stopping.set)
        self.thread.join(DEADLINE)
        self.loop.close()

    def worker(self, name: str = "mixed:0", text: str = "Hello 😀 world", **options: Any) -> ScriptedWorker:
        answer = self.tokenizer.encode(text, False)
        worker = ScriptedWorker(self.endpoint, name, self.tokenizer, answer, **({"role": name.split(":")[0]} | options))
        self.workers.append(worker)
        return worker.start()

    def pair(self, **options: Any) -> tuple[ScriptedWorker, ScriptedWorker]:
        return self.worker("prefill:0", **options), self.worker("decode:0", **options)

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE)

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> HttpAnswer:
        connection = self.connect()
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        connection.request(method, path, data, headers or {})
        answer = HttpAnswer(connection.getresponse())
        connection.close()
        return answer

    def complete(self, prompt: Any = "hi", **fields: Any) -> HttpAnswer:
        return self.ask("POST", "/v1/completions", {"model": MODEL, "prompt": prompt} | fields)

    def chat(self, content: Any = "hi", **fields: Any) -> HttpAnswer:
        messages = [{"role": "user", "content": content}]
        return self.ask("POST", "/v1/chat/completions", {"model": MODEL, "messages": messages} | fields)

    def value(self, series: str, **labels: str) -> float:
        return self.proxy.metrics.registry.get_sample_value(series, labels) or 0.0


@contextmanager
def site(
    folder: Path, tokenizer: Tokenizer, further: Mapping[str, Tokenizer] = NO_MORE, /, **config: Any
) -> Iterator[ScriptedSite]:
    made = ScriptedSite(folder, tokenizer, further, **config)
    made.thread.start()
    eventually(made.serving.is_set, "the site")
    try:
        yield made
    finally:
        made.stop()
