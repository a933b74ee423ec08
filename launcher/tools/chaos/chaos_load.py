# SPDX-License-Identifier: Apache-2.0
"""The load: streams that each send one prompt after the other, and compare every answer with the undisturbed one."""

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from pontil.launcher.foundation.errors import LaunchError
from pontil.launcher.tools.bench.http_client import HttpClient
from pontil.launcher.tools.bench.stream_client import ConnectionBroke, RequestFailed, RequestRefused, events
from pontil.launcher.tools.chaos.chaos_answer import ChaosAnswer, difference
from pontil.launcher.tools.chaos.continued_stream import ContinuedStream
from pontil.launcher.tools.chaos.prompts import ChaosPrompt

# The answers of a family that share a salt, one after the other.
FAMILY_SHARES = 8
# The longest wait, in seconds, after a refusal; the server's own advice may be longer.
MOST_PATIENCE = 5.0
# Seconds after a connection that broke.
BREAK_PAUSE = 0.2
REFUSALS = (429, 503)
NAMED = "x-request-id"


class AnswerOutcome(Enum):
    """SAME as undisturbed; REFUSED before its first byte, with advice to come back; CUT off with its proxy, with
    nothing to continue; else a failure."""

    SAME = "same"
    REFUSED = "refused"
    CUT = "cut"
    CHANGED = "changed"
    LOST = "lost"

    @property
    def is_failure(self) -> bool:
        return self in (AnswerOutcome.CHANGED, AnswerOutcome.LOST)


@dataclass(frozen=True, slots=True)
class AnswerRecord:
    """One request: its times in seconds of the monotonic clock, `arrivals` those of its streamed tokens, and the tokens
    by the server's count. `name` is its X-Request-Id, `continued` how often its stream went on after a break; `broke`
    says that its connection did and there was nothing to continue, `headless` that it was a stream whose head had not
    come."""

    prompt: str
    sent: float
    ended: float
    outcome: AnswerOutcome
    detail: str = ""
    arrivals: tuple[float, ...] = ()
    prompt_tokens: int = 0
    completion_tokens: int = 0
    name: str = ""
    continued: int = 0
    broke: bool = False
    headless: bool = False

    @property
    def gaps(self) -> list[tuple[float, float]]:
        """The times between which no token came, from the first token on."""
        return list(zip(self.arrivals, self.arrivals[1:], strict=False))


async def ask_for(
    client: HttpClient, prompt: ChaosPrompt, model: str, salt: str, name: str = "", resumes: bool = False
) -> ChaosAnswer:
    """Send a prompt and return the answer, whole or not; one that `resumes` is continued where it can be. Raises
    RequestFailed, also for an answer of another shape."""
    answer, body, headers = ChaosAnswer(), prompt.body(model, salt), {NAMED: name} if name else {}
    # The times of events are those of a clock of its own.
    offset = time.monotonic() - time.perf_counter()
    try:
        if resumes and prompt.can_continue:
            await ContinuedStream(client, prompt.path, body, headers).read(answer, offset)
            return answer
        async with client.post(prompt.path, body, headers) as response:
            if not prompt.streamed:
                answer.take_whole(json.loads(await response.read()))
                return answer
            async for at, event in events(response):
                answer.take(event, at + offset)
    except (AttributeError, TypeError) as error:
        raise RequestFailed(f"the answer has no shape of the API: {error}") from None
    return answer


@dataclass(slots=True)
class ExpectedAnswers:
    """The undisturbed answers by prompt, the prompts that the server refuses, and the tokens of all requests that were
    sent to find them."""

    answers: dict[str, ChaosAnswer] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    prompt_tokens: int = 0
    completion_tokens: int = 0


async def undisturbed(
    client: HttpClient, prompts: Sequence[ChaosPrompt], model: str, salt: str, resumes: bool = False
) -> ExpectedAnswers:
    """Ask for every prompt alone and then for all at once. Raises LaunchError if an answer fails, or is not the same
    both times: then nothing can be told from a third."""
    expected_answers = ExpectedAnswers()

    async def asked(prompt: ChaosPrompt, way: str) -> ChaosAnswer:
        return await ask_for(client, prompt, model, f"{salt} {way} {prompt.name}", resumes=resumes)

    for prompt in prompts:
        try:
            expected_answers.answers[prompt.name] = await asked(prompt, "alone")
        except RequestRefused as error:
            if error.status != 400:
                raise LaunchError(f"An undisturbed request failed ({prompt.name}): {error}") from None
            expected_answers.refused[prompt.name] = str(error)
        except RequestFailed as error:
            raise LaunchError(f"An undisturbed request failed ({prompt.name}): {error}") from None
    served_prompts = [prompt for prompt in prompts if prompt.name in expected_answers.answers]
    if not served_prompts:
        raise LaunchError(f"The server refuses every prompt: {next(iter(expected_answers.refused.values()), '')}")
    try:
        again = await asyncio.gather(*(asked(prompt, "at once") for prompt in served_prompts))
    except RequestFailed as error:
        raise LaunchError(f"An undisturbed request failed: {error}") from None
    for prompt, answer in zip(served_prompts, again, strict=True):
        if differs := difference(expected_answers.answers[prompt.name], answer):
            raise LaunchError(
                f"This server does not repeat itself, so nothing can be compared: {prompt.name}: {differs}. Launch it "
                "with --deterministic."
            )
        expected_answers.prompt_tokens += 2 * (answer.prompt_tokens or 0)
        expected_answers.completion_tokens += 2 * (answer.completion_tokens or 0)
    return expected_answers


class ChaosLoad:
    """A closed loop of streams over the prompts whose answers are expected, until `over` is set. Every request ends in
    a record; a prompt whose connection broke is asked again. `resumes`: streams that break are continued."""

    def __init__(
        self,
        client: HttpClient,
        model: str,
        prompts: Sequence[ChaosPrompt],
        expected_answers: Mapping[str, ChaosAnswer],
        salt: str,
        resumes: bool = False,
    ) -> None:
        self.client, self.model, self.expected, self.salt, self.resumes = client, model, expected_answers, salt, resumes
        self.prompts = [prompt for prompt in prompts if prompt.name in expected_answers]
        self.records: list[AnswerRecord] = []
        self.over = asyncio.Event()
        self.sent = 0

    async def run(self, streams: int) -> None:
        await asyncio.gather(*(self.stream(number) for number in range(streams)))

    async def stream(self, number: int) -> None:
        turn = number
        while not self.over.is_set():
            record, pause = await self.one(self.prompts[turn % len(self.prompts)])
            self.records.append(record)
            turn += not record.broke
            if pause:
                await self.rest(pause)

    async def rest(self, seconds: float) -> None:
        """Wait, but not beyond the end."""
        try:
            await asyncio.wait_for(self.over.wait(), min(seconds, MOST_PATIENCE))
        except asyncio.TimeoutError:
            return

    async def one(self, prompt: ChaosPrompt) -> tuple[AnswerRecord, float]:
        """Send one request; return its record, and how long to wait before the next."""
        self.sent += 1
        number, began = self.sent, time.monotonic()
        share = number if prompt.family is None else f"{prompt.family} {number // (FAMILY_SHARES * len(self.prompts))}"

        name = self.name_of(number)

        def record(outcome: AnswerOutcome, detail: str = "", broke: bool = False) -> AnswerRecord:
            headless = broke and self.resumes and prompt.can_continue
            return AnswerRecord(
                prompt.name, began, time.monotonic(), outcome, detail, name=name, broke=broke, headless=headless
            )

        try:
            answer = await ask_for(self.client, prompt, self.model, f"{self.salt} {share}", name, self.resumes)
        except RequestRefused as error:
            if error.status in REFUSALS and error.retry_after is not None:
                return record(AnswerOutcome.REFUSED, str(error)), seconds_of(error.retry_after)
            return record(AnswerOutcome.LOST, f"it was refused without a Retry-After: {error}"), 1.0
        except ConnectionBroke as error:
            return record(AnswerOutcome.LOST, str(error), broke=True), BREAK_PAUSE
        except RequestFailed as error:
            return record(AnswerOutcome.LOST, str(error)), 1.0
        return self.compared(prompt, answer, began, name), 0.0

    @property
    def names(self) -> str:
        """The beginning of the names of all requests."""
        return f"{self.salt.replace(' ', '-')}-"

    def name_of(self, number: int) -> str:
        return f"{self.names}{number}"

    def compared(self, prompt: ChaosPrompt, answer: ChaosAnswer, began: float, name: str) -> AnswerRecord:
        differs = difference(self.expected[prompt.name], answer)
        outcome = AnswerOutcome.SAME
        if differs:
            outcome = AnswerOutcome.LOST if answer.missing else AnswerOutcome.CHANGED
        return AnswerRecord(
            prompt.name, began, time.monotonic(), outcome, differs or "", tuple(answer.times),
            answer.prompt_tokens or 0, answer.completion_tokens or 0, name, answer.continued,
        )  # fmt: skip

    @property
    def failures(self) -> int:
        """The failures so far, but for those whose connections broke: it is not known yet what they were cut by."""
        return sum(record.outcome.is_failure and not record.broke for record in self.records)


def seconds_of(retry_after: str) -> float:
    """Return the header's seconds; one that is a date counts as a second."""
    return float(retry_after) if retry_after.isascii() and retry_after.isdigit() else 1.0
