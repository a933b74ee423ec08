# SPDX-License-Identifier: Apache-2.0
"""A proxy with hundreds of workers that are only registered: what is sent to them is kept."""

from dataclasses import dataclass, field
from pathlib import Path

from proxy_configs import bare_config

from pontil.runtime.cache.prefix import full_keys
from pontil.runtime.proxy.proxy import Proxy
from pontil.runtime.proxy.requests.generation import Generation
from pontil.runtime.proxy.requests.stream import Stream
from pontil.runtime.proxy.requests.ticket import Ticket
from pontil.runtime.proxy.routing.held_prefixes import short_key
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.wire.messages import SCHEMA, Hello, Message

PROMPT = list(range(1, 200)) * 4
PARAMS = SamplingParams(max_tokens=8, seed=1)
BLOCK = 16


@dataclass
class FleetProxy:
    """The proxy, and the messages that workers would have got."""

    proxy: Proxy
    sent: list[Message] = field(default_factory=list)

    def send(self, message: Message) -> bool:
        self.sent.append(message)
        return True


def hello_of(number: int, role: str, seats: int = 256) -> Hello:
    return Hello(
        f"w{number}", SCHEMA, f"{role}:{number}", role, number + 10, "cpu", "tiny", "m", "k", f"ipc:///{number}",
        BLOCK, 4097, seats, 8192, 16384,
    )  # fmt: skip


def fleet_proxy(
    folder: Path, tokenizer: Tokenizer, size: int, roles: tuple[str, ...], shared: int = 0, seats: int = 256
) -> FleetProxy:
    """Return a proxy with so many workers, which have these roles in turn and the first `shared` blocks of PROMPT."""
    made = FleetProxy(Proxy(bare_config(f"ipc://{folder}/c", version="1"), tokenizer))
    made.proxy.dispatcher.send = made.send
    keys = dict.fromkeys(short_key(key) for key in list(full_keys(PROMPT, "", BLOCK))[:shared])
    for number in range(size):
        assert made.proxy.registry.hello(hello_of(number, roles[number % len(roles)], seats), 0.0) is None
    for worker in made.proxy.registry.workers.values():
        worker.prefixes.keys.update(keys)
    return made


def submit(proxy: Proxy) -> Stream:
    """Submit PROMPT as the HTTP side does."""
    return proxy.submit(Ticket(), Generation(PROMPT, PARAMS), snapshot=proxy.registry.generating.snapshot())
