# SPDX-License-Identifier: Apache-2.0
"""Tokens of one choice, each counted once, and the text that may be shown."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pontil.runtime.accounting.counts import AttemptCount
from pontil.runtime.accounting.ledger import WorkShare
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.timeline.step_gaps import BUFFER, StepGaps
from pontil.runtime.tokenizer.detokenizer import Detokenizer
from pontil.runtime.tokenizer.stop_strings import StopStrings
from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.wire.token_batch import HEAD

if TYPE_CHECKING:
    from pontil.runtime.proxy.requests.request import Request

MAX_TOKEN_ID = 1 << 31


class BrokenAnswer(Exception):
    """Frames that contradict each other or leave a gap: tokens were lost, or two workers disagree."""


class NoText:
    """The detokenizer of ids that stand for no text."""

    def add(self, ids: Sequence[int]) -> str:
        return ""

    def finish(self) -> str:
        return ""


class ChoiceText:
    """One choice's ids and text, which is empty without a tokenizer. Frames may arrive late, twice and from two workers
    (decode repeats what prefill sent), so ids are counted once, by index."""

    def __init__(self, tokenizer: Tokenizer | None, params: SamplingParams) -> None:
        self.params = params
        self.ids: list[int] = []
        self.detokenizer = NoText() if tokenizer is None else Detokenizer(tokenizer, params.skip_special_tokens)
        self.stops = StopStrings(params.stop, params.include_stop_str_in_output) if params.stop else None

    def unseen(self, index: int, ids: Sequence[int]) -> Sequence[int]:
        """Return the new tail of `ids`, which start at `index`. Raises BrokenAnswer for a gap or a contradiction."""
        have = len(self.ids)
        if index == have:
            return ids
        if index > have:
            raise BrokenAnswer(f"token {have} of the answer was lost")
        seen = have - index
        if self.ids[index : index + len(ids)] != list(ids[:seen]):
            raise BrokenAnswer("two workers disagree about a token of the answer")
        return ids[seen:]

    def add(self, ids: Sequence[int], reason: str | None = None, stop_match: str | None = None) -> str:
        """Append new ids; return the text that can be shown now. With a `reason` they are the last, and no text is held
        back. The text of the first `min_tokens` ids is not matched against stop strings."""
        shown = ids[:-1] if reason == "stop" and stop_match is None and self.hides(ids) else ids
        early = self.params.min_tokens - len(self.ids)
        self.ids += ids
        begun, rest = (self.detokenizer.add(shown[:early]), shown[early:]) if early > 0 else ("", shown)
        text = self.detokenizer.add(rest)
        if reason is not None:
            text += self.detokenizer.finish()
        if self.stops is None:
            return begun + text
        text = begun + self.stops.feed(text)
        return text if reason is None else text + self.stops.finish()

    @property
    def stop_reason(self) -> str | int | None:
        """The stop string, or the id of `stop_token_ids`, with which an answer that was stopped ends; None if it was
        the model's own end."""
        if self.stops is not None and self.stops.matched is not None:
            return self.stops.matched
        return self.ids[-1] if self.ids and self.ids[-1] in self.params.stop_token_ids else None

    def hides(self, ids: Sequence[int]) -> bool:
        """Return whether the last id is a stop token that is not to be shown."""
        params = self.params
        return bool(ids) and ids[-1] in params.stop_token_ids and not params.include_stop_str_in_output


@dataclass(slots=True)
class TokenPath:
    """The fast path for the next tokens of one choice from one worker of an attempt, open once that worker has sent
    what only its first frame carries. It holds every object that a token changes, looked up once instead of per token.

    A row of a Step that is not ordinary goes to `Request.accept`, which takes any frame; for an ordinary row both have
    the same result.
    """

    request: "Request"
    choice: int
    attempt: int
    answer: ChoiceText
    share: WorkShare
    count: AttemptCount
    gaps: StepGaps

    def is_ordinary(self, row: Sequence[int], ids: Sequence[int]) -> bool:
        """Return whether the row has the next ids of the choice, all new and without the last one of its budget."""
        share, index = self.share, row[2]
        return (
            row[0] == self.attempt
            and index == share.reached == len(self.answer.ids)
            and not share.vouched
            and index + len(ids) < self.answer.params.max_tokens
            and min(row) >= 0
            and max(ids) < MAX_TOKEN_ID
        )

    def try_accept(self, row: list[int], now: float) -> bool:
        """Take the row as `Request.accept` would, if it is ordinary; return whether it was."""
        ids = row[HEAD:]
        if not self.is_ordinary(row, ids):
            return False
        request, count = self.request, len(ids)
        request.last_frame = request.waits_since = now
        # As StepGaps.note does, without a call.
        arrivals = self.gaps.arrivals
        arrivals.append(now)
        if len(arrivals) >= BUFFER:
            self.gaps.settle()
        request.entry.delivered += count
        self.share.go_on(count)
        self.count.accepted += count
        request.mailbox.put(self.answer.add(ids), ids, self.choice)
        return True
