# SPDX-License-Identifier: Apache-2.0
"""A prompt's blocks are transferred while the rest of it is computed: only the last chunk's are pulled after the
Handoff."""

from pathlib import Path

from slow_connector import SlowConnector
from tiny_llama import write_tiny_llama
from workers import PromptWorker, ScriptedProxy, drawn, everyone_clean, open_worker, prompt

from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.transfer.connector import Pull
from pontil.runtime.transfer.security import TransferSecurity
from pontil.runtime.wire.messages import Handoff, Message
from pontil.runtime.worker.links.worker_sockets import WorkerSockets

TOKENS, BUDGET = 2000, 448


class SlowWorker(PromptWorker):
    """A worker that records the order of arriving blocks and the Handoff."""

    def connect(self, sockets: WorkerSockets, storage: KVStorage, guard: TransferSecurity | None) -> SlowConnector:
        events = self.events = list[str | int]()
        is_mine = sockets.is_mine

        class Noting(SlowConnector):
            def poll(self) -> list[Pull]:
                ends = super().poll()
                events.extend(pull.end.bytes // self.storage.layout.block_bytes for pull in ends)
                return ends

        def noting(message: Message) -> bool:
            if isinstance(message, Handoff):
                events.append("handoff")
            return is_mine(message)

        vars(sockets)["is_mine"] = noting
        return Noting(storage, sockets.poller.wake)


def test_only_the_last_chunk_is_exposed(proxy: ScriptedProxy, tmp_path: Path) -> None:
    model = tmp_path / "model"
    write_tiny_llama(model, max_model_len=4096)
    settings = {"kv_cache_memory": 32 << 20, "max_num_batched_tokens": BUDGET}
    prefill = open_worker(model, tmp_path, "prefill:0", "prefill", **settings)  # type: ignore[arg-type]
    decode = open_worker(model, tmp_path, "decode:0", "decode", SlowWorker, **settings)
    assert isinstance(decode, SlowWorker)
    proxy.admit(prefill, decode)
    proxy.workers.remove(prefill)
    proxy.submit_pair(prefill, decode, "long", prompt(TOKENS), drawn(3))

    def caught_up() -> bool:
        """Return whether the blocks have arrived. Real prompts are computed more slowly than their blocks travel; so is
        this one."""
        sends, transfers = prefill.prefill.kv_sender.open.values(), list(decode.decode.kv_receiver.open.values())
        return not sends or [take.announced for take in transfers if not take.pending] == [
            one.announced for one in sends
        ]

    def handed_over() -> bool:
        proxy.turn_until(caught_up)
        prefill.turn()
        return bool(prefill.prefill.jobs.held)

    proxy.turn_until(handed_over)
    proxy.workers.insert(0, prefill)
    (answer,) = proxy.finish("long")
    assert len(answer.ids) == 3
    *early, last = [event for event in decode.events if event != "handoff"]
    assert len(early) >= 3 and decode.events == [*early, "handoff", last]
    assert sum(map(int, early)) + int(last) == TOKENS // 16 and int(last) <= BUDGET // 16
    everyone_clean(proxy)
