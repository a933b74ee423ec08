# SPDX-License-Identifier: Apache-2.0
"""Clients that ask for receipts among others, in a share of the seeds. Each receipt holds, whatever happened to the
processes meanwhile: its chain is that of the model's logits behind each token, which the product did not compute."""

import hashlib
import json
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from hash_logits import logits_after
from hash_model import NEXT_SALT, mixed
from http_reader import HttpReader
from request_connections import AnswerTaker, Dialer, PendingAnswer
from virtual_time import SeededWorld

from pontil.runtime.receipts.answer_file import read_answer_file
from pontil.runtime.receipts.signing import ReceiptSigner, check
from pontil.runtime.receipts.statement import Receipt, ReceiptError

if TYPE_CHECKING:
    from seed_run import SeedRun

# Share of seeds with such clients, and the most of them; tries of one whose answer is refused or lost.
SHARE, MOST_CLIENTS, MOST_TRIES, AGAIN = 0.4, 6, 12, 1.0
KEY, NAME = "key-of-cleo", "receipt-"
# The secret key of the launch.
SECRET = "07" * 32
# The first token of their prompts, which no other client's begins with.
OWN = 251


class ReceiptClient(AnswerTaker):
    """The client of one answer with receipts, which it asks for until it has it: as `body`."""

    def __init__(self, world: SeededWorld, dialer: Dialer, number: int, ended: Callable[[], None]) -> None:
        self.world, self.dialer, self.number, self.ended = world, dialer, number, ended
        chance = self.chance = world.random(f"receipt/{number}")
        self.prompt = [OWN, number, *(3 + chance.randrange(200) for _ in range(chance.randrange(1, 90)))]
        self.fields: dict[str, Any] = {
            "prompt": self.prompt,
            "max_tokens": chance.randrange(1, 60),
            "seed": chance.getrandbits(31),
            "temperature": chance.choice((0.0, 1.0)),
            "n": chance.choice((1, 1, 2)),
            "ignore_eos": True,
        }
        if chance.random() < 0.5:
            self.fields["stream"] = True
        self.form = chance.choice(("1", "digest"))
        self.tries = 0
        self.body = ""
        self.pending: PendingAnswer | None = None

    def ask(self) -> None:
        self.tries += 1
        connection = self.dialer.dial(7000 + self.number)
        if connection is None:
            self.disconnected()
            return
        data = json.dumps(self.fields).encode()
        lines = {
            "host": "localhost",
            "authorization": f"Bearer {KEY}",
            "x-request-id": f"{NAME}{self.number}-{self.tries}",
            "pontil-receipt": self.form,
            "content-length": str(len(data)),
            "content-type": "application/json",
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self.pending = connection.ask(self, f"POST /v1/completions HTTP/1.1\r\n{head}\r\n".encode() + data)

    # The parts of an AnswerTaker.

    def disconnected(self) -> None:
        if self.tries < MOST_TRIES:
            self.world.after(AGAIN, self.ask)
        else:
            self.world.after(0.0, self.ended)

    def answered(self, reader: HttpReader) -> None:
        text = bytes(reader.body).decode()
        if reader.status == 200 and (not self.fields.get("stream") or "[DONE]" in text):
            self.body = text
            self.ended()
        elif reader.status in (200, 429, 503):
            # A stream may break after its beginning.
            self.disconnected()
        else:
            self.world.violate(f"a request for a receipt has an answer: {reader.status} {text[:200]}")
            self.ended()


class ReceiptClients:
    """Those of a seed."""

    def __init__(self, world: SeededWorld, dialer: Dialer, ended: Callable[[], None]) -> None:
        chance = self.chance = world.random("receipts")
        count = chance.randrange(1, MOST_CLIENTS) if chance.random() < SHARE else 0
        self.world = world
        self.clients = [ReceiptClient(world, dialer, number, ended) for number in range(count)]

    def plan(self, begin: float, seconds: float, joins: Callable[[], None]) -> None:
        for client in self.clients:
            joins()
            self.world.at(begin + self.chance.random() * seconds, client.ask)


def of_receipts(name: str) -> bool:
    """Return whether a row is one of a client's that asks for receipts."""
    return name.startswith(NAME)


def receipts_are_true(run: "SeedRun") -> Iterator[str]:
    """Each complete answer has the receipts of its choices: signed, of its own prompt and tokens, and with the chain of
    the model that it names."""
    vocab, public = run.model.config.vocab_size, ReceiptSigner(bytes.fromhex(SECRET)).public_key
    for client in run.receipts.clients:
        if not client.body:
            continue
        name = f"{NAME}{client.number}-{client.tries}"
        try:
            file = read_answer_file(client.body)
            check(file, public)
        except ReceiptError as error:
            # Its workers may have left before it was complete.
            if '"refused"' not in client.body:
                yield f"{name}: {error}"
            continue
        if [receipt.statement["choice"] for receipt in file.receipts] != list(range(client.fields["n"])):
            yield f"{name} has not one receipt for each choice"
        for receipt in file.receipts:
            yield from (f"{name} {wrong}" for wrong in untrue(client, receipt, vocab))


def untrue(client: ReceiptClient, receipt: Receipt, vocab: int) -> Iterator[str]:
    """Yield what is wrong with one receipt."""
    statement = receipt.statement
    if (receipt.prompt is None) != (client.form == "digest") or receipt.prompt not in (None, client.prompt):
        yield "shows another prompt than was sent, or shows it where a digest was asked for"
    if statement["prompt_tokens"] != len(client.prompt) or len(receipt.tokens) != client.fields["max_tokens"]:
        yield f"is of {statement['prompt_tokens']} and {len(receipt.tokens)} tokens"
    salt = 0 if statement["revision"] is None else NEXT_SALT
    chain, likeliest = chain_of(client.prompt, receipt.tokens, vocab, salt, statement["top_logits"])
    if chain != statement["chain"]:
        yield f"states the chain {statement['chain'][:16]}, which is {chain[:16]}"
    if client.fields["temperature"] == 0.0 and receipt.tokens != likeliest:
        yield "has tokens that are not the likeliest"


def chain_of(prompt: Sequence[int], tokens: Sequence[int], vocab: int, salt: int, most: int) -> tuple[str, list[int]]:
    """Return the chain of these tokens behind a prompt, as its description has it, and the likeliest token at each
    place: the oracle."""
    running, likeliest = salt, list[int]()
    for token in prompt:
        running = mixed(running, token)
    chain = hashlib.sha256(b"pontil receipt 1").digest()
    for token in tokens:
        row: Any = logits_after(running, vocab)[0].numpy()
        order = np.lexsort((np.arange(vocab), -row))[:most]
        top = b"".join(struct.pack("<if", int(place), float(row[place])) for place in order)
        chain = hashlib.sha256(chain + token.to_bytes(4, "little") + top).digest()
        likeliest.append(int(order[0]))
        running = mixed(running, token)
    return chain.hex(), likeliest
