# SPDX-License-Identifier: Apache-2.0
"""A streamed reply whose events have ids, and that can begin after any of them.

A continued answer is told from its beginning, as its parts were told before, and what the reader has is left out. The
form (of chunks, tool calls, reasoning) so gets into the state in which it was, whichever process it was in.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pontil.http.stream.receipts import ReceiptNote
from pontil.http.stream.reply import ReplyFormat
from pontil.http.stream.reply_shape import DONE, ReplyChoice, ReplyHeading
from pontil.http.stream.resume_point import ChoicePlace, GroupPlace, NoSuchEvent, ResumePoint, parts
from pontil.http.stream.schema_watch import SchemaWatch
from pontil.runtime.accounting.counts import Usage
from pontil.runtime.errors import PontilError
from pontil.runtime.grammar.processes.verdict import Verdict
from pontil.runtime.proxy.requests.answer import ChoiceEvent, Delta, Ended
from pontil.runtime.proxy.requests.stream import Stream
from pontil.runtime.sampling_params import SamplingParams


class HeldTokens:
    """Tokens of one choice that are not told yet. Adding some costs what they are, however many there are."""

    def __init__(self, choice: int) -> None:
        self.choice = choice
        self.ids: list[int] = []
        self.pieces: list[str] = []
        self.characters = 0

    def add(self, delta: Delta) -> None:
        self.ids += delta.ids
        self.pieces.append(delta.text)
        self.characters += len(delta.text)

    def take(self, ids: int | None = None, characters: int | None = None) -> Delta:
        """Remove so many ids and characters; all of them without a number."""
        text = "".join(self.pieces)
        delta = Delta(text[:characters], self.ids[:ids], self.choice, [])
        remaining_text = "" if characters is None else text[characters:]
        self.ids = [] if ids is None else self.ids[ids:]
        self.pieces, self.characters = [remaining_text], len(remaining_text)
        return delta


class ResumedChoice:
    """One choice of a stream: the `place` up to which it was told, the one that its reader `has`, and the events that
    it has of what leads to the next place. Raises NoSuchEvent once the choice turns out to have no such places."""

    def __init__(self, index: int, has: ChoicePlace, group: GroupPlace | None) -> None:
        self.has, self.group = has, group
        self.place = ChoicePlace()
        self.held = HeldTokens(index)
        # The places at which a part has to end that are still ahead. Each is after the one before it.
        self.marks = [has] if has.ids or has.characters else []
        if group is not None and not group.place.ended:
            self.marks.append(group.place)

    def parts(self, choice_event: Delta | Ended) -> Iterator[Delta | Ended]:
        """Return the parts that can be told now: each up to a mark, then all there is."""
        if isinstance(choice_event, Ended):
            # A choice that ends before its reader's place is not the one that was read.
            self.check(not self.marks)
            yield choice_event
            return
        if self.marks:
            self.held.add(choice_event)
        while self.marks:
            mark, place, held_tokens = self.marks[0], self.place, self.held
            ids, characters = mark.ids - place.ids, mark.characters - place.characters
            if len(held_tokens.ids) < ids or held_tokens.characters < characters:
                return
            del self.marks[0]
            yield held_tokens.take(ids, characters)
            choice_event = held_tokens.take() if not self.marks else choice_event
        if choice_event.ids or choice_event.text:
            yield choice_event

    @property
    def is_split(self) -> bool:
        """True until its reader has the rest of the events of which it has the first ones."""
        return self.group is not None

    def advance(self, choice_event: Delta | Ended) -> ChoicePlace:
        """Go to the place after this part."""
        place = self.place
        if isinstance(choice_event, Ended):
            self.place = ChoicePlace(place.ids, place.characters, True)
        else:
            self.place = ChoicePlace(place.ids + len(choice_event.ids), place.characters + len(choice_event.text))
        return self.place

    def skipped(self, events: int) -> int:
        """Return how many of the events that lead to this place the reader has."""
        if self.has.has(self.place):
            self.check(not self.place.ended or self.place == self.has)
            return events
        self.check(not self.has.ended)
        group = self.group
        if group is None:
            return 0
        self.group = None
        self.check(group.place == self.place and group.events < events)
        return group.events

    def check(self, fits: bool) -> None:
        if not fits:
            raise NoSuchEvent


class ResumableFormat:
    """The events of `form`, of a stream of these parameters, after the point `since`. Raises NoSuchEvent for one that
    the stream turns out not to have.

    An id says all that its reader has. So `places` begin where the reader is, however little of a choice was told again
    by then; and since an id can name the first events of one choice's next place only, the other choices' parts are
    `waiting` until those are complete."""

    def __init__(self, form: ReplyFormat, since: ResumePoint, params: SamplingParams) -> None:
        since.check(params.n, params.max_tokens)
        self.form, self.since = form, since
        self.choices = [ResumedChoice(index, since.place(index), since.group_of(index)) for index in range(params.n)]
        self.places = [choice.has for choice in self.choices]
        self.waiting: list[ChoiceEvent] = []

    @property
    def heading(self) -> ReplyHeading:
        return self.form.heading

    @property
    def streamed(self) -> bool:
        return True

    @property
    def schema_watch(self) -> SchemaWatch | None:
        return self.form.schema_watch

    @schema_watch.setter
    def schema_watch(self, watch: SchemaWatch | None) -> None:
        self.form.schema_watch = watch

    @property
    def receipts(self) -> ReceiptNote | None:
        return self.form.receipts

    @receipts.setter
    def receipts(self, note: ReceiptNote | None) -> None:
        self.form.receipts = note

    def content(self, index: int, text: str) -> str | None:
        return self.form.content(index, text)

    def whole(self, choices: Sequence[ReplyChoice], usage: Usage, verdicts: Mapping[int, Verdict]) -> dict[str, Any]:
        return self.form.whole(choices, usage, verdicts)

    def events(self, stream: Stream, choice_events: Sequence[ChoiceEvent]) -> bytes:
        """Return the events of these parts that the reader does not have."""
        encoded_events = list[bytes]()
        split = None if self.since.group is None else self.choices[self.since.group.choice]
        for index, event in choice_events:
            choice = self.choices[index]
            if split is not None and split.is_split and choice is not split:
                self.waiting.append((index, event))
                continue
            encoded_events += [self.told(stream, index, part) for part in choice.parts(event)]
            if self.waiting and split is not None and not split.is_split:
                waiting, self.waiting = self.waiting, []
                encoded_events.append(self.events(stream, waiting))
        return b"".join(encoded_events)

    def told(self, stream: Stream, index: int, choice_event: Delta | Ended) -> bytes:
        """Return the events of one part with their ids, but for those that the reader has."""
        data = parts(self.form.events(stream, [(index, choice_event)]))
        before, choice = tuple(self.places) if len(data) > 1 else (), self.choices[index]
        place = choice.advance(choice_event)
        self.places[index] = choice.has if choice.has.has(place) else place
        encoded_events = []
        for number, event in enumerate(data[(skip := choice.skipped(len(data))) :], skip + 1):
            last = number == len(data)
            point = (
                ResumePoint(self.since.name, tuple(self.places))
                if last
                else (ResumePoint(self.since.name, before, GroupPlace(index, place, number)))
            )
            encoded_events.append(b"id: %b\n%b" % (str(point).encode(), event))
        return b"".join(encoded_events)

    def end(self, stream: Stream, verdicts: Mapping[int, Verdict]) -> bytes:
        data, tail = parts(self.form.end(stream, verdicts)), self.since.tail
        if tail >= max(1, len(data)):
            raise NoSuchEvent
        encoded_events = []
        for number, event in enumerate(data, 1):
            point = ResumePoint(self.since.name, tuple(self.places), tail=number)
            if event == DONE:
                encoded_events.append(event)
            elif number > tail:
                encoded_events.append(b"id: %b\n%b" % (str(point).encode(), event))
        return b"".join(encoded_events)

    def failure(self, error: PontilError) -> bytes:
        return self.form.failure(error)
