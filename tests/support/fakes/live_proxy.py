# SPDX-License-Identifier: Apache-2.0
"""A real proxy in an event loop, with scripted workers over real sockets."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from event_reader import take
from proxy_configs import bare_config
from scripted_worker import DEADLINE, ScriptedWorker
from submitting import submit

from pontil.runtime.proxy.proxy import Proxy
from pontil.runtime.proxy.requests.answer import Delta, Finished
from pontil.runtime.proxy.requests.stream import Stream
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.wire.messages import Submit

TEXT = "Paris 😀, the city"


class LiveProxy:
    """A real proxy and the workers that a test starts."""

    def __init__(self, proxy: Proxy, tokenizer: Tokenizer) -> None:
        self.proxy, self.tokenizer = proxy, tokenizer
        self.endpoint = proxy.bind()
        self.workers: list[ScriptedWorker] = []

    async def worker(self, name: str, **options: Any) -> ScriptedWorker:
        fields = {"role": name.split(":")[0]} | options
        made = ScriptedWorker(self.endpoint, name, self.tokenizer, self.tokenizer.encode(TEXT, False), **fields)
        self.workers.append(made)
        await asyncio.to_thread(made.start)
        return made

    def submit(self, prompt: list[int], params: SamplingParams, **ticket: Any) -> Stream:
        return submit(self.proxy, prompt, params, **ticket)

    def value(self, series: str, **labels: str) -> float:
        return self.proxy.metrics.registry.get_sample_value(series, labels) or 0.0


@asynccontextmanager
async def live_proxy(tmp_path: Path, tokenizer: Tokenizer, **options: Any) -> AsyncIterator[LiveProxy]:
    control = f"ipc://{tmp_path}/control"
    config = bare_config(control, **options)
    made = LiveProxy(Proxy(config, tokenizer), tokenizer)
    made.proxy.start()
    try:
        yield made
    finally:
        for worker in made.workers:
            await asyncio.to_thread(worker.die)
        await made.proxy.close()


def prompts_balance(proxy: Proxy) -> None:
    """Check that the prompt of every ended request was cached or computed, whichever attempts failed (A11)."""
    for name, entry in proxy.ledger.closed.items():
        if entry.billed is not None:
            computed = entry.computed_beside(entry.billed.cached_tokens)
            assert computed in (None, entry.prompt - entry.billed.cached_tokens), name


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


async def collect(stream: Stream) -> tuple[str, list[int], Finished]:
    text, ids = "", list[int]()
    while not isinstance(event := await take(stream), Finished):
        if isinstance(event, Delta):
            text, ids = text + event.text, ids + event.ids
    return text, ids, event


async def submitted(worker: ScriptedWorker) -> Submit:
    return await asyncio.to_thread(worker.submits.get, timeout=DEADLINE)


def row(worker: ScriptedWorker, state: str = "ready") -> dict[str, Any]:
    """Return the worker's row in the supervisor's table."""
    return {"name": worker.name, "role": worker.role, "pid": worker.pid, "state": state, "device": "cpu"}


def lost(live_proxy: LiveProxy, worker: ScriptedWorker) -> None:
    """Report through the supervisor that the worker died."""
    live_proxy.proxy.take_table([row(one) for one in live_proxy.workers])
    live_proxy.proxy.take_table([row(one, "exited" if one is worker else "ready") for one in live_proxy.workers])


def balanced(live_proxy: LiveProxy) -> None:
    assert live_proxy.proxy.idle and live_proxy.proxy.ledger.imbalance == 0
    prompts_balance(live_proxy.proxy)
    assert (
        live_proxy.value("pontil_num_requests_running") == 0 and live_proxy.value("pontil_counts_disputed_total") == 0
    )
    assert all(worker.in_flight == 0 for worker in live_proxy.proxy.registry.workers.values())
