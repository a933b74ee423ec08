# SPDX-License-Identifier: Apache-2.0
"""The recomputation of one choice, in an engine of its own."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pontil.runtime.cache.adaptation import Adaptation
from pontil.runtime.engine.engine import Output
from pontil.runtime.engine.sequences.sequence import FinishReason
from pontil.runtime.engine.sequences.streamed import MediaInputs
from pontil.runtime.receipts.chain import START, extended
from pontil.runtime.receipts.statement import Receipt
from pontil.runtime.wire.messages import Submit
from pontil.runtime.worker.generate.grammar_manager import give
from pontil.runtime.worker.process.worker_request import FINISH_REASONS, WorkerRequest, make_request
from pontil.runtime.worker.start.assembly import WorkerResources

NAME, COMPANY = "receipt", "beside it"


@dataclass(slots=True)
class Recomputed:
    """The choice as it was made here, so far."""

    tokens: list[int] = field(default_factory=list)
    chain: bytes = START
    finish: str = ""

    def take(self, output: Output) -> None:
        stated = b"".join(told.top_logits for told in output.logprobs)
        self.tokens += output.ids
        self.chain = extended(self.chain, output.ids, stated)
        self.finish = FINISH_REASONS.get(output.finish, self.finish)


def recompute(
    receipt: Receipt,
    prompt: Sequence[int],
    machine: WorkerResources,
    company: int = 0,
    media: MediaInputs | None = None,
) -> Recomputed:
    """Compute a receipt's choice, whose prompt may have `media`, together with `company` others that begin with parts
    of its ids. It ends with the first token that is another one. Raises RequestError for what this model cannot
    compute."""
    engine, own = machine.engine, request_of(receipt, prompt, machine, NAME)
    if media is not None:
        # Nobody computed these rows before, whatever has the same ids.
        own.sequence.prefix.salt = NAME
        own.sequence.streams = replace(own.sequence.streams, media=media)
    for number in range(company):
        # Of other lengths, so that they are at other places in each step.
        part = list(prompt[: max(1, len(prompt) - number - 1)])
        engine.add(request_of(receipt, part, machine, f"{COMPANY} {number}").sequence)
    engine.add(own.sequence, own.known)
    made, choice = Recomputed(), receipt.statement["choice"]
    while own.key in engine.sequences:
        for output in engine.step():
            if output.sequence.id == own.key and output.sequence.branch.choice == choice:
                made.take(output)
        if made.tokens != receipt.tokens[: len(made.tokens)]:
            break
    for request in list(engine.sequences):
        engine.end(request, FinishReason.ABORTED)
    return made


def request_of(receipt: Receipt, prompt: Sequence[int], machine: WorkerResources, name: str) -> WorkerRequest:
    """Return the choice as a request that a worker gets; its siblings have ended."""
    params, choice = receipt.params, receipt.statement["choice"]
    siblings: list[list[int]] = [[0] if number != choice else [] for number in range(params.n)]
    alone: dict[str, Any] = {} if params.n == 1 else {"delivered": siblings, "choices": [choice]}
    if (adapter := machine.adapters.by_digest.get(receipt.adapter)) is not None:
        adapted = Adaptation.of(receipt.adapter, adapter.invocation, prompt)
        alone |= {"adapter": adapted.digest, "adapter_start": adapted.start}
    request = make_request(Submit("", "", name, 0, list(prompt), params.to_wire(), **alone), machine)
    if params.grammar is not None:
        give(request, machine.grammars.compile(params.grammar))
    return request


def difference(receipt: Receipt, made: Recomputed) -> str | None:
    """Return in words where what was made first differs from what the receipt states; None where it does not."""
    expected, count = receipt.tokens, receipt.statement["completion_tokens"]
    for place, (token, found) in enumerate(zip(expected, made.tokens, strict=False)):
        if token != found:
            return f"token {place} is {found} here, and the receipt has {token}"
    if len(made.tokens) != count:
        return f"the answer has {len(made.tokens)} tokens here, and the receipt has {count}"
    if made.finish != receipt.statement["finish_reason"]:
        return f"the answer ends by {made.finish!r} here, and the receipt has {receipt.statement['finish_reason']!r}"
    if made.chain.hex() != receipt.statement["chain"]:
        return f"all {count} tokens are equal, but not the digest chain: their logits were others"
    return None
