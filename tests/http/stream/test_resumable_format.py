# SPDX-License-Identifier: Apache-2.0
"""Ids of a stream's events, right and wrong, against every format whose streams can be continued: after each id the
answer goes on exactly, or the id is refused; neither takes more work than the answer has parts."""

import json
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from effort import examples

from pontil.http.fields.delivery import Delivery
from pontil.http.openai.chat.parsed_shape import FunctionCallShape, ParsedChatShape
from pontil.http.stream.reply import ReplyFormat
from pontil.http.stream.reply_shape import ChatShape, CompletionShape, ReplyHeading, ShownText
from pontil.http.stream.resumable_format import ResumableFormat
from pontil.http.stream.resume_point import ResumePoint, read_event_id
from pontil.http.stream.schema_watch import SchemaWatch
from pontil.runtime.accounting.counts import Usage
from pontil.runtime.chat.calls.format import HERMES
from pontil.runtime.chat.dialect import Dialect
from pontil.runtime.errors import RequestError
from pontil.runtime.grammar.processes.verdict import Verdict
from pontil.runtime.proxy.requests.answer import ChoiceEvent, Delta, Ended, Finished
from pontil.runtime.proxy.requests.generation import Generation
from pontil.runtime.proxy.requests.request import Request
from pontil.runtime.proxy.requests.stream import Stream
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.tokenizer.tokenizer import Tokenizer

NAME = "0123456789abcdef" * 2
BUDGET = 400
HEADING = ReplyHeading("cmpl-1", 1, "tiny", None)
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "the 😀 sea", "far": 12}}\n</tool_call>'
TEXTS = (
    f"<think>First I look, then I say.</think>It is wide. {CALL}\n{CALL} <tool_ca",
    "The quick brown fox 😀 jumps. 🦊",
    f"<think>Never ends, {CALL}",
    "",
)
MARKS = re.compile(r"\d+")
# As many calls of the form as any answer here can need.
MOST_PARTS = 500


class CountingForm:
    """A format that refuses to be told nothing, or to be told more parts than there are."""

    def __init__(self, form: ReplyFormat) -> None:
        self.form, self.told = form, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.form, name)

    def events(self, stream: Stream, said: Sequence[ChoiceEvent]) -> bytes:
        self.told += 1
        assert self.told < MOST_PARTS, "an endless loop"
        for _, one in said:
            assert isinstance(one, Ended) or one.ids or one.text, "an empty part"
        return self.form.events(stream, said)


@dataclass
class Read:
    """The content of events, whatever their boundaries."""

    texts: dict[Any, str] = field(default_factory=lambda: defaultdict(str))
    ids: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    counts: dict[Any, int] = field(default_factory=lambda: defaultdict(int))

    def take(self, data: str) -> "Read":
        if data == "[DONE]":
            self.counts["done"] += 1
            return self
        event = json.loads(data)
        for choice in event["choices"]:
            self.take_choice(choice)
        self.counts["usage"] += not event["choices"]
        return self

    def take_choice(self, choice: Mapping[str, Any]) -> None:
        index, delta = choice["index"], choice.get("delta", {})
        self.texts[index] += choice.get("text") or ""
        for name in ("content", "reasoning_content"):
            self.texts[index, name] += delta.get(name) or ""
        for call in [*delta.get("tool_calls", ()), *filter(None, [delta.get("function_call")])]:
            self.texts[index, call.get("index", 0)] += call.get("function", call)["arguments"]
            self.counts[index, "calls"] += "name" in call.get("function", call)
        self.ids[index] += choice.get("token_ids") or []
        self.counts[index, "roles"] += "role" in delta
        self.counts[index, "prompts"] += "prompt_token_ids" in choice
        self.counts[index, "ends", choice["finish_reason"]] += choice["finish_reason"] is not None

    @property
    def all(self) -> dict[Any, Any]:
        said: dict[Any, Any] = {key: text for key, text in self.texts.items() if text}
        said |= {("ids", key): ids for key, ids in self.ids.items() if ids}
        return said | {key: count for key, count in self.counts.items() if count}

    def is_rest_of(self, whole: "Read") -> bool:
        return (
            all(whole.texts[key].endswith(text) for key, text in self.texts.items())
            and all(whole.ids[key][len(whole.ids[key]) - len(ids) :] == ids for key, ids in self.ids.items())
            and all(count <= whole.counts[key] for key, count in self.counts.items())
        )


Form = Callable[[Tokenizer], ReplyFormat]


def made(kind: Callable[..., ReplyFormat], delivery: Delivery, *more: Any, watched: bool = False) -> Form:
    def make(tokenizer: Tokenizer) -> ReplyFormat:
        form = kind(HEADING, delivery, ShownText(tokenizer), *more)
        form.schema_watch = SchemaWatch(None, "{}") if watched else None  # type: ignore[arg-type]
        return form

    return make


PLAIN, FULL = Delivery(True, False, False, False), Delivery(True, True, True, True)
READER = partial(Dialect(HERMES, True, 9).reader, {"look": None}, False)
FORMS: dict[str, Form] = {
    "completion": made(CompletionShape, PLAIN), "completion with all": made(CompletionShape, FULL),
    "chat": made(ChatShape, PLAIN), "chat with all": made(ChatShape, FULL),
    "chat with usage": made(ChatShape, Delivery(True, True, False, False)),
    "checked chat": made(ChatShape, PLAIN, watched=True),
    "tools": made(ParsedChatShape, PLAIN, READER), "tools with all": made(ParsedChatShape, FULL, READER),
    "tools without reasoning": made(ParsedChatShape, FULL, READER, False),
    "checked tools": made(ParsedChatShape, FULL, READER, watched=True),
    "functions": made(FunctionCallShape, PLAIN, READER),
}  # fmt: skip


class ResumedScene:
    """An answer of some choices in one format, which can be told any number of times, in other pieces each time."""

    def __init__(self, form: Form, texts: Sequence[str], tokenizer: Tokenizer, dice: random.Random) -> None:
        self.form, self.tokenizer, self.dice = form, tokenizer, dice
        self.answers = [tokenizer.encode(text, False) for text in texts]
        self.params = SamplingParams(max_tokens=BUDGET, seed=0, n=len(texts))

    def drains(self, at_once: int) -> Iterator[tuple[Stream, list[ChoiceEvent]]]:
        """Tell the answer: so many ids of each choice at once, then the rest in pieces."""
        request = Request.start("r", Generation([1, 2, 3], self.params), self.tokenizer, 0.0)
        stream = Stream([request], lambda request: None)
        rest = [list(ids) for ids in self.answers]
        pieces = [(choice, at_once) for choice in range(len(rest))]
        while len(request.reasons) < len(rest):
            for choice, count in pieces:
                self.tell(request, choice, rest[choice], count)
            yield stream, stream.drain()
            pieces = [(self.dice.randrange(len(rest)), self.dice.randint(1, 9)) for _ in range(self.dice.randint(1, 3))]

    def tell(self, request: Request, choice: int, rest: list[int], count: int) -> None:
        if choice in request.reasons:
            return
        ids, reason = rest[:count], None
        del rest[:count]
        if not rest and (count > len(ids) or self.dice.random() < 0.7):
            reason = request.answers[choice].reason = "stop"
        text = request.answers[choice].add(ids, reason)
        if ids or text:
            request.mailbox.put(text, ids, choice)
        if reason is not None:
            done = len(request.reasons) == self.params.n
            request.mailbox.end_choice(choice, reason, None, Finished(reason, Usage(3, 9, 0), "r") if done else None)

    def told(self, event: str, at_once: int) -> list[tuple[str | None, str]]:
        """Return the events after this one, each with its id. Raises RequestError."""
        form = CountingForm(self.form(self.tokenizer))
        resumed = ResumableFormat(form, read_event_id(event), self.params)
        data = b""
        for stream, said in self.drains(at_once):
            data += resumed.events(stream, said)
        data += resumed.end(stream, {choice: Verdict.met() for choice in range(self.params.n)})
        return list(events_in(data.decode()))


def events_in(data: str) -> Iterator[tuple[str | None, str]]:
    for event in filter(None, data.split("\n\n")):
        *mark, shown = event.split("\n")
        yield mark[0].removeprefix("id: ") if mark else None, shown.removeprefix("data: ")


def read(events: Sequence[tuple[str | None, str]]) -> Read:
    found = Read()
    for _, data in events:
        found.take(data)
    return found


def scenes(tokenizer: Tokenizer, seed: int) -> Iterator[tuple[ResumedScene, random.Random]]:
    dice = random.Random(seed)
    for form in FORMS.values():
        for choices in (1, 2, 3):
            yield ResumedScene(form, dice.sample(TEXTS, choices), tokenizer, dice), dice


def changed(event: str, dice: random.Random) -> str:
    """Return the id with another value in one or two of its fields, or with other fields."""
    for _ in range(dice.randint(1, 2)):
        head, _, tail = event.partition(":")
        fields = list(MARKS.finditer(tail))
        if fields and dice.random() < 0.6:
            one = dice.choice(fields)
            value = dice.choice([0, 1, int(one[0]) + 1, max(0, int(one[0]) - 1), int(dice.choice(fields)[0]),
                                 dice.randrange(60), 999_999_999])  # fmt: skip
            tail = f"{tail[: one.start()]}{value}{tail[one.end() :]}"
        else:
            places, _, rest = tail.partition("+")
            places = places.partition("u")[0]
            index = dice.randrange(4)
            tail = dice.choice([
                f"{places}u{dice.choice([0, 1, 2, 3, 9])}", places, f"{places}_0.0", places.rpartition("_")[2],
                f"{places}+{index}.{dice.randrange(30)}.{dice.randrange(90)}{dice.choice(['', 'e'])}.{index}",
                tail.replace("e", "", 1), re.sub(r"(\d)(?=_|$|\+|u)", r"\1e", tail, count=1),
                f"{places}+{rest}" if rest else f"{places}e",
            ])  # fmt: skip
        event = f"{head}:{tail}"
    return event


def check_rest(scene: ResumedScene, event: str, whole: Read, at_once: int) -> bool:
    """Check that an id of any kind is refused, or the rest of what it says follows. Return whether it was taken."""
    try:
        point, rest = read_event_id(event), read(scene.told(event, at_once))
    except RequestError as error:
        assert error.status == 400 and str(error).count(". ") == 0
        return False
    assert rest.is_rest_of(whole), event
    assert rest.counts["done"] == 1
    for choice, ids in whole.ids.items():
        had = point.place(choice).ids
        least = point.group.place.ids if point.group is not None and point.group.choice == choice else had
        assert not ids or len(ids) - least <= len(rest.ids[choice]) <= len(ids) - had, event
    ends = [sum(rest.counts[choice, "ends", reason] for reason in ("stop", "tool_calls", "function_call"))
            for choice in range(scene.params.n)]  # fmt: skip
    if scene.form(scene.tokenizer).schema_watch is not None:
        # The ends come after all choices, each after the text that was held back.
        assert scene.params.n - point.tail <= sum(ends) <= scene.params.n and (point.tail or all(ends)), event
    else:
        assert ends == [not point.place(choice).ended for choice in range(scene.params.n)], event
    return True


def test_after_every_event_the_rest_of_the_answer_follows(tokenizer: Tokenizer) -> None:
    for scene, dice in scenes(tokenizer, 1):
        whole = scene.told(NAME, 0)
        assert [one for one in whole if one[0] is None] == [(None, "[DONE]")]
        for number, (event, _) in enumerate(whole):
            if event is None or number % examples(3, 1):
                continue
            for at_once in dice.sample((0, dice.randrange(40), BUDGET), examples(1, 3)):
                rest = scene.told(event, at_once)
                assert read([*whole[: number + 1], *rest]).all == read(whole).all, event


@pytest.mark.parametrize("seed", range(examples(2, 60)))
def test_an_answer_that_breaks_off_again_and_again_is_told_once(seed: int, tokenizer: Tokenizer) -> None:
    """Also where one choice goes on before what the reader has of another one was told again."""
    for scene, dice in scenes(tokenizer, 1000 + seed):
        whole, had, event = scene.told(NAME, 0), list[tuple[str | None, str]](), NAME
        for _ in range(5):
            rest = scene.told(event, dice.choice([0, dice.randrange(40)]))
            marks = [number for number, (mark, _) in enumerate(rest) if mark is not None]
            if not marks:
                break
            had += rest[: (last := dice.choice(marks)) + 1]
            event = str(rest[last][0])
        rest = scene.told(event, 0)
        assert read([*had, *rest]).all == read(whole).all, event


@pytest.mark.parametrize("seed", range(examples(2, 200)))
def test_an_id_of_any_kind_goes_on_exactly_or_is_refused(seed: int, tokenizer: Tokenizer) -> None:
    taken = refused = 0
    for scene, dice in scenes(tokenizer, 100 + seed):
        told = scene.told(NAME, dice.choice([0, 7, BUDGET]))
        whole, known = read(told), [event for event, _ in told if event is not None]
        for _ in range(examples(15, 60)):
            event = changed(dice.choice(known), dice)
            good = check_rest(scene, event, whole, dice.choice([0, dice.randrange(40), BUDGET]))
            taken, refused = taken + good, refused + (not good)
    assert taken and refused


@pytest.mark.parametrize(
    "places",
    [
        "1.1+0.0.0.1", "1.1+0.0.9.1", "5.5+0.6.4.1", "5.5+0.5.5.1", "5.5+0.9.9.0", "5.5+0.5.5e.0", "5.5+0.6.6e.1",
        "5.5e+0.5.5e.1", "5.5u1", "5.5+1.6.6.1", "1.1e", "3.2e", "0.0e", "401.5", "400.5", "5.5+0.401.9.1",
        "5.5+0.400.900.1", "5.999999999", "5.5_5.5", "5.5e+0.5.5e.999999999",
    ],
)  # fmt: skip
def test_a_place_that_no_event_has_is_refused(places: str, tokenizer: Tokenizer) -> None:
    for form in FORMS.values():
        scene = ResumedScene(form, TEXTS[1:2], tokenizer, random.Random(3))
        for at_once in (0, 4, BUDGET):
            with pytest.raises(RequestError, match="Last-Event-ID is no event of this stream"):
                scene.told(f"{NAME}:{places}", at_once)


def test_more_of_the_tail_than_there_is_is_refused(tokenizer: Tokenizer) -> None:
    for form in FORMS.values():
        scene = ResumedScene(form, TEXTS[1:2], tokenizer, random.Random(3))
        last = [event for event, _ in scene.told(NAME, 0) if event is not None][-1]
        assert [data for _, data in scene.told(last, 0)] == ["[DONE]"]
        with pytest.raises(RequestError, match="no event of this stream"):
            scene.told(f"{last.partition('u')[0]}u9", 0)


def test_what_waits_for_the_readers_place_is_added_up_without_copies(tokenizer: Tokenizer) -> None:
    """Else a place far ahead made each token cost what the answer had so far."""
    scene = ResumedScene(FORMS["completion"], TEXTS[1:2], tokenizer, random.Random(3))
    resumed = ResumableFormat(scene.form(tokenizer), read_event_id(f"{NAME}:399.9999"), scene.params)
    ((stream, _), *_) = scene.drains(0)
    held = resumed.choices[0].held
    ids = held.ids
    for count in range(1, 300):
        assert resumed.events(stream, [(0, Delta("a", [1], 0, []))]) == b""
        assert held.ids is ids and len(ids) == held.characters == count
    with pytest.raises(RequestError, match="no event of this stream"):
        resumed.events(stream, [(0, Ended(0, "stop"))])


def test_an_id_is_what_it_was_written_as() -> None:
    for event in (NAME, f"{NAME}:1.2_3.4e", f"{NAME}:1.2+0.3.4.1", f"{NAME}:1.2e_3.4eu2", f"{NAME}:1.2+0.1.2e.1"):
        assert str(read_event_id(event)).removesuffix(":") == event
    assert read_event_id(NAME) == ResumePoint(NAME)


def test_an_id_says_whether_its_reader_has_any_token() -> None:
    for places, has_part in (("", False), (":0.0", False), (":0.0_2.0", True), (":0.0+0.1.4.1", True)):
        assert read_event_id(NAME + places).has_part == has_part, places
