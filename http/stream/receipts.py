# SPDX-License-Identifier: Apache-2.0
"""Receipts of answers: asked for by the header pontil-receipt, made when an answer is complete."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sanic import Request

from pontil.http.stream.recording import RequestSample, sample_of
from pontil.runtime.errors import RequestError, Unavailable
from pontil.runtime.proxy.fleet.registry_snapshot import RegistrySnapshot
from pontil.runtime.proxy.proxy import Proxy
from pontil.runtime.proxy.requests.generation import PromptWork
from pontil.runtime.proxy.requests.request import Request as ProxyRequest
from pontil.runtime.proxy.requests.request import Work
from pontil.runtime.proxy.requests.stream import Stream
from pontil.runtime.receipts.chain import MARK_BYTES, START, TOP_LOGITS, extended
from pontil.runtime.receipts.record import RecordedAnswer
from pontil.runtime.receipts.signing import ReceiptSigner
from pontil.runtime.receipts.statement import ADAPTER, VERSION, ids_digest, stated_parameters
from pontil.runtime.wire.compatibility import promises_bits
from pontil.runtime.wire.messages import Hello

HEADER = "pontil-receipt"
# The name of the wish in the record of a stream that can be continued.
RECORDED = "receipt"
WHOLE, DIGEST = "1", "digest"
# The field with the marks of each choice's logits, which a replay has beside receipts.
MARKS = "receipt_marks"
MOVED = "the workers that made this answer have left, so that nothing can be said of them"


def check_no_receipt(request: Request, what: str) -> None:
    """Raise RequestError if a receipt is asked for of something that has none."""
    if wanted(request) is not None:
        raise RequestError(f"{what} has no receipt: leave out {HEADER}")


def check_known(works: Sequence[PromptWork]) -> None:
    """Raise Unavailable where nobody can state what stands in a prompt."""
    if any(work.contents is None for work in works):
        raise Unavailable("the encoders of recordings and images are of two kinds now: try again in a moment")


def wanted(request: Request) -> str | None:
    """Return which receipt this request asks for, if it does: one that continues a stream, that which the stream was
    begun with."""
    context = getattr(request.ctx, "resume", None)
    if context is not None and context.claimed is not None:
        begun_with: str | None = context.head.get(RECORDED)
        return begun_with
    value = ", ".join(request.headers.getall(HEADER, ["0"]))
    if value not in ("0", WHOLE, DIGEST):
        raise RequestError(f"{HEADER} is {value!r:.40}: send 1, or digest for one without the prompt's ids")
    return None if value == "0" else value


@dataclass(slots=True)
class ReceiptNote:
    """The receipts of one `reply`, named by its id, and by the name of the `model`: of each choice one, once `sign` has
    made them, in `told`, the fields that the reply has: in the `form` that its client asked for, if it did. They may be
    wanted for a record too, of which this is a `sample`."""

    signer: ReceiptSigner
    proxy: Proxy
    snapshot: RegistrySnapshot
    reply: str
    model: str
    form: str | None
    sample: RequestSample | None
    told: dict[str, Any] = field(default_factory=dict)

    async def sign(self, stream: Stream) -> None:
        """Make the receipts of a complete answer. Long prompts are digested beside the event loop."""
        workers = [self.workers_of(request) for request in stream.requests]
        answers, line = await asyncio.to_thread(self.made, stream.requests, workers)
        if self.form is not None:
            shown = [{"refused": MOVED} if answer is None else self.shown(answer) for answer in answers]
            self.told = {"receipt": shown[0] if len(shown) == 1 else shown}
        if any(request.ticket.replay is not None for request in stream.requests):
            self.told[MARKS] = ["" if answer is None else answer.marks.hex() for answer in answers]
        if self.sample is not None:
            self.sample.session.put(line)

    def shown(self, answer: RecordedAnswer) -> dict[str, Any]:
        receipt = answer.receipt
        return (receipt if self.form == WHOLE else replace(receipt, prompt=None)).to_json()

    def workers_of(self, request: ProxyRequest) -> Hello | None:
        """Return what the workers are that computed it: those of its release, which may have changed before it
        began."""
        if request.release in (None, self.snapshot.release):
            return self.snapshot.any_hello
        serving = self.proxy.registry.of(request.work.group).serving(request.release)
        return serving[0].hello if serving else None

    def made(
        self, requests: Sequence[ProxyRequest], workers: Sequence[Hello | None]
    ) -> tuple[list[RecordedAnswer | None], bytes | None]:
        """Return each choice, None for one of which nothing can be said, and the line of the record, if there is
        one."""
        answers: list[RecordedAnswer | None] = []
        for request, hello in zip(requests, workers, strict=True):
            common = None if hello is None else self.statement(request, hello)
            answers += [
                None if common is None else self.answer(request, common, number) for number in range(request.params.n)
            ]
        whole = [answer for answer in answers if answer is not None]
        may_record = self.sample is not None and len(whole) == len(answers)
        return answers, self.sample.line(whole, self.signer) if self.sample is not None and may_record else None

    def answer(self, request: ProxyRequest, common: dict[str, Any], number: int) -> RecordedAnswer:
        answer = request.answers[number]
        # Where no bits are equal everywhere, no logits were stated.
        chain = answer.chain if request.params.top_logits else extended(START, answer.ids, b"")
        statement = common | {
            "choice": number,
            "completion_tokens": len(answer.ids),
            "finish_reason": answer.reason or "",
            "tokens_sha256": ids_digest(answer.ids),
            "chain": chain.hex(),
        }
        marks = bytes(answer.marks) if len(answer.marks) == MARK_BYTES * len(answer.ids) else b""
        return RecordedAnswer(self.signer.receipt(statement, answer.ids, request.prompt), marks)

    def statement(self, request: ProxyRequest, hello: Hello) -> dict[str, Any]:
        """Return the part of the statement that all choices of a request have."""
        return (
            {
                "receipt": VERSION,
                "id": self.reply,
                "request": request.id,
                "model": self.model,
                "model_fingerprint": hello.model_fingerprint,
                "tokenizer": self.proxy.in_flight.tokenizer_of(request.work.group).digest,
                "revision": hello.revision,
                "version": hello.version or self.proxy.config.version,
                "kernels": hello.kernels or "",
                "dtype": hello.dtype or "",
                "kv_cache_dtype": hello.kv_cache_dtype or "",
                "top_logits": request.params.top_logits,
                "parameters": stated_parameters(request.params),
                "prompt_tokens": len(request.prompt),
                "cached_tokens": request.billed.cached_tokens,
                "prompt_sha256": ids_digest(request.prompt),
            }
            | ({ADAPTER: digest} if (digest := request.ticket.adapter_digest) else {})
            | stated_in(request.work)
        )


def stated_in(work: Work) -> dict[str, Any]:
    assert isinstance(work, PromptWork), "what has a receipt has a prompt"
    return dict(work.stated)


def receipt_field(note: ReceiptNote | None) -> dict[str, Any]:
    """Return the field with the receipts of a complete reply, which is there only if they were asked for."""
    return {} if note is None else note.told


class ReceiptDesk:
    """The key of a proxy, by which it signs receipts, if it has one."""

    def __init__(self, proxy: Proxy) -> None:
        key = proxy.config.receipt_key
        self.proxy, self.signer = proxy, None if key is None else ReceiptSigner(bytes.fromhex(key))

    def open(
        self, request: Request, works: Sequence[PromptWork], snapshot: RegistrySnapshot, reply: str, model: str
    ) -> ReceiptNote | None:
        """Return the note of a reply that is to have receipts, and have its works computed with what they state. None
        if none are asked for. Raises RequestError for a request that cannot have them."""
        form, sample = wanted(request), sample_of(request)
        if form is None and (sample is None or not self.may_record(request, works, snapshot)):
            return None
        if self.signer is None:
            raise RequestError(
                "this server has no key to sign receipts with: its operator can give one by --receipt-key"
            )
        if any(work.is_moved for work in works):
            raise RequestError(f"kv_transfer_params has others compute the prompt: leave it out, or {HEADER}")
        check_known(works)
        kernels = None if snapshot.any_hello is None else snapshot.any_hello.kernels
        for work in works:
            work.params = replace(work.params, top_logits=TOP_LOGITS if promises_bits(kernels) else 0)
        return ReceiptNote(self.signer, self.proxy, snapshot, reply, model, form, sample)

    def may_record(self, request: Request, works: Sequence[PromptWork], snapshot: RegistrySnapshot) -> bool:
        """Return whether a request can have a receipt that its client has not asked for, and does not fail for it:
        workers of an earlier version may state no logits. A record has no recordings and no images."""
        hello, config = snapshot.any_hello, self.proxy.config
        is_plain = not any(work.is_moved or work.contents is not work.prompt for work in works)
        is_alike = hello is not None and (hello.version or config.version) == config.version
        return self.signer is not None and is_plain and is_alike
