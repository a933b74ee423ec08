# SPDX-License-Identifier: Apache-2.0
"""Small requests beside the load, one each second however long the last one takes."""

import asyncio
import time

from pontil.launcher.tools.bench.http_client import HttpClient
from pontil.launcher.tools.bench.stream_client import RequestFailed
from pontil.launcher.tools.chaos.chaos_load import ask_for
from pontil.launcher.tools.chaos.fairness import ProbeRecord
from pontil.launcher.tools.chaos.prompts import COMPLETIONS, GREEDY, ChaosPrompt

EVERY = 1.0
SMALL = ChaosPrompt("probe", COMPLETIONS, {"prompt": "A port:", "max_tokens": 1, **GREEDY})


class FairnessProbe:
    """Sends the requests until `over`, and gives each a record when it ends."""

    def __init__(self, client: HttpClient, model: str, salt: str, over: asyncio.Event) -> None:
        self.client, self.model, self.salt, self.over = client, model, salt, over
        self.records: list[ProbeRecord] = []

    async def run(self) -> None:
        running = list[asyncio.Task[None]]()
        try:
            while not self.over.is_set():
                running.append(asyncio.create_task(self.one(len(running))))
                try:
                    await asyncio.wait_for(self.over.wait(), EVERY)
                except asyncio.TimeoutError:
                    continue
            await asyncio.gather(*running)
        finally:
            for task in running:
                task.cancel()

    async def one(self, number: int) -> None:
        sent_at, answered_at, problem = time.monotonic(), None, "the answer has no token"
        try:
            answer = await ask_for(self.client, SMALL, self.model, f"{self.salt} probe {number}")
            answered_at = answer.times[0] if answer.times else None
        except RequestFailed as error:
            problem = str(error)
        self.records.append(
            ProbeRecord(sent_at, time.monotonic(), answered_at, "" if answered_at is not None else problem)
        )
