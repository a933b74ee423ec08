# SPDX-License-Identifier: Apache-2.0
"""One request's progress in the proxy, driven by frames and never by text (A7)."""

from dataclasses import dataclass, field
from typing import Any

from pontil.runtime.accounting.counts import DECODE, PREFILL, Account, Usage
from pontil.runtime.proxy.answer import Answer
from pontil.runtime.proxy.mailbox import Finished, Mailbox
from pontil.runtime.proxy.policy import Pair, Route
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.text.tokenizer import Tokenizer
from pontil.runtime.wire.messages import Cancel, Submit, Tokens

MAX_TOKEN_ID = 1 << 31


@dataclass(slots=True)
class Request:
    """`arrived` and `last_frame` are in seconds of the proxy's clock; `reached` holds the phases heard from."""

    id: str
    prompt: list[int]
    params: SamplingParams
    route: Route
    account: Account
    answers: tuple[Answer, ...]
    arrived: float
    last_frame: float
    attempt: int = 0
    phases: dict[str, str] = field(default_factory=dict)
    reached: set[str] = field(default_factory=set)
    mailbox: Mailbox = field(default_factory=Mailbox)

    @classmethod
    def start(
        cls, name: str, prompt: list[int], params: SamplingParams, route: Route, tokenizer: Tokenizer, now: float
    ) -> "Request":
        account = Account(len(prompt), params.max_tokens)
        request = cls(name, prompt, params, route, account, (Answer(tokenizer, params),), now, now)
        request.phases = route.phases
        account.open(request.attempt, tuple(request.phases.values()))
        return request

    @property
    def begun(self) -> bool:
        """Whether any token has come."""
        return any(answer.ids for answer in self.answers)

    @property
    def usage(self) -> Usage:
        return self.account.running_usage

    def expects(self, sender: str, attempt: int) -> bool:
        return attempt == self.attempt and sender in self.phases

    def needs(self, incarnation: str) -> bool:
        """Whether the answer depends on this worker: prefill's part is over once decode has spoken."""
        phase = self.phases.get(incarnation)
        return phase is not None and not (phase == PREFILL and DECODE in self.reached)

    def accept(self, frame: Tokens, now: float) -> int:
        """Take a frame's ids and counts; how many ids were new. The mailbox is closed when they were the last.

        Raises BrokenAnswer when the frames do not fit together: the answer cannot be completed.
        """
        answer = self.answers[frame.choice]
        new = answer.unseen(frame.index, frame.ids)
        phase = self.phases[frame.sender]
        self.reached.add(phase)
        self.last_frame = now
        self.account.accept(self.attempt, phase, len(new), frame.generated_tokens, frame.cached_tokens)
        reason = self.account.finish_reason(frame.finish_reason)
        room = self.params.max_tokens - len(answer.ids)
        delivered = list(new[:room])
        text = answer.add(delivered, reason, frame.stop_match)
        if delivered or text:
            self.mailbox.put(text, delivered)
        if reason is not None:
            self.account.ended_by(self.attempt, phase)
            self.mailbox.close(Finished(reason, self.account.usage, self.route.name))
        return len(delivered)

    def is_sound(self, frame: Tokens) -> bool:
        """Whether the frame's numbers can be numbers of this request at all."""
        ids = frame.ids
        fits = not ids or (min(ids) >= 0 and max(ids) < MAX_TOKEN_ID)
        return fits and 0 <= frame.choice < len(self.answers) and frame.index >= 0

    def submits(self, sender: str) -> list[Submit]:
        """What starts the attempt: one message for each worker, decode's first, as it has to make room."""
        common: dict[str, Any] = {
            "sender": sender, "request_id": self.id, "attempt": self.attempt, "prompt": self.prompt,
            "sampling": self.params.to_wire(),
        }  # fmt: skip
        if not isinstance(self.route, Pair):
            return [Submit(receiver=self.route.worker.incarnation, **common)]
        prefill, decode = self.route.prefill, self.route.decode
        common["transfer_id"] = f"{self.id}.{self.attempt}"
        return [
            Submit(
                receiver=decode.incarnation, phase=DECODE, peer=prefill.incarnation,
                peer_endpoint=prefill.peer_endpoint, **common,
            ),
            Submit(receiver=prefill.incarnation, phase=PREFILL, peer=decode.incarnation, **common),
        ]  # fmt: skip

    def cancels(self, sender: str) -> list[Cancel]:
        return [Cancel(sender, incarnation, self.id, self.attempt) for incarnation in self.phases]
