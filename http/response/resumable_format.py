# SPDX-License-Identifier: Apache-2.0
"""A streamed reply whose events have ids, and that can begin after any of them.

A continued answer is told from its beginning, as its parts were told before, and what the reader has is left out. The
form (of chunks, tool calls, reasoning) so gets into the state in which it was, whichever process it was in.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pontil.http.response.rendering import ReplyFormat
from pontil.http.response.reply_shape import ReplyChoice
from pontil.http.response.resume_point import ChoicePlace, GroupPlace, ResumePoint, parts
from pontil.http.response.schema_watch import SchemaWatch
from pontil.http.response.sse import DONE
from pontil.runtime.accounting.counts import Usage
from pontil.runtime.errors import PontilError
from pontil.runtime.grammar.verdict import Verdict
from pontil.runtime.proxy.stream import ChoiceEvent, Delta, Ended, Stream


class ResumableFormat:
    """The events of `form`, of a stream with so many choices, after the point `since`. `held` are the parts of each
    choice that lead up to that point and are not complete yet."""

    def __init__(self, form: ReplyFormat, since: ResumePoint, choices: int) -> None:
        since.check(choices)
        self.form, self.since = form, since
        self.places = [ChoicePlace()] * choices
        self.held = [Delta("", [], choice, []) for choice in range(choices)]
        # The place of each choice that the reader has; taken out once the choice has come there.
        self.goals = {choice: since.place(choice) for choice in range(choices) if since.place(choice) != ChoicePlace()}
        self.group = since.group

    @property
    def streamed(self) -> bool:
        return True

    @property
    def schema_watch(self) -> SchemaWatch | None:
        return self.form.schema_watch

    @schema_watch.setter
    def schema_watch(self, watch: SchemaWatch | None) -> None:
        self.form.schema_watch = watch

    def content(self, index: int, text: str) -> str | None:
        return self.form.content(index, text)

    def whole(
        self, choices: Sequence[ReplyChoice], usage: Usage, verdicts: Mapping[int, Verdict]
    ) -> dict[str, Any]:  # fmt: skip
        return self.form.whole(choices, usage, verdicts)

    def events(self, stream: Stream, said: Sequence[ChoiceEvent]) -> bytes:
        return b"".join([self.event(stream, index, one) for index, one in said])

    def event(self, stream: Stream, index: int, said: Delta | Ended) -> bytes:
        """Return the events of a part that the reader does not have."""
        data = b""
        if isinstance(said, Delta):
            held = self.held[index]
            held.text, held.ids = held.text + said.text, [*held.ids, *said.ids]
            held.logprobs = [*held.logprobs, *said.logprobs]
            while (part := self.next_part(index)) is not None:
                data += self.told(stream, index, part)
            return data
        # A stream that ends before the reader's point is not the one that it read: what is left is not told again.
        if self.held[index].ids or self.held[index].text:
            self.form.events(stream, [(index, self.held[index])])
        self.held[index] = Delta("", [], index, [])
        return self.told(stream, index, said)

    def next_part(self, index: int) -> Delta | None:
        """Take the next part of a choice that is told at once: up to the reader's point, up to the end of what it has a
        part of, or all there is. None if that is not here yet."""
        held, place, goal = self.held[index], self.places[index], self.goal(index)
        if not held.ids and not held.text:
            return None
        if goal is None:
            self.held[index] = Delta("", [], index, [])
            return held
        ids, characters = goal.ids - place.ids, goal.characters - place.characters
        if len(held.ids) < ids or len(held.text) < characters:
            return None
        self.held[index] = Delta(held.text[characters:], held.ids[ids:], index, held.logprobs[ids:])
        return Delta(held.text[:characters], held.ids[:ids], index, held.logprobs[:ids])

    def goal(self, index: int) -> ChoicePlace | None:
        """Return the next place at which a part of this choice has to end, if any."""
        goal, place = self.goals.get(index), self.places[index]
        if goal is not None and (goal.ids, goal.characters) != (place.ids, place.characters):
            return goal
        group = self.group
        if group is not None and group.choice == index and not group.place.ended:
            return group.place
        return None

    def told(self, stream: Stream, index: int, said: Delta | Ended) -> bytes:
        """Return the events of one part with their ids, but for those that the reader has."""
        before, data = tuple(self.places), parts(self.form.events(stream, [(index, said)]))
        place = self.places[index]
        if isinstance(said, Ended):
            place = ChoicePlace(place.ids, place.characters, True)
        else:
            place = ChoicePlace(place.ids + len(said.ids), place.characters + len(said.text))
        self.places[index] = place
        skip = self.skipped(index, place, len(data))
        shown = []
        for number, event in enumerate(data[skip:], skip + 1):
            last = number == len(data)
            point = (
                ResumePoint(self.since.name, tuple(self.places))
                if last
                else (ResumePoint(self.since.name, before, GroupPlace(index, place, number)))
            )
            shown.append(b"id: %b\n%b" % (str(point).encode(), event))
        return b"".join(shown)

    def skipped(self, index: int, place: ChoicePlace, events: int) -> int:
        """Return how many of the events that lead a choice to this place the reader has."""
        goal = self.goals.get(index)
        if goal is not None:
            if place == goal:
                del self.goals[index]
            return events
        group = self.group
        if group is not None and group.choice == index and group.place == place:
            self.group = None
            return min(group.events, events)
        return 0

    def end(self, stream: Stream, verdicts: Mapping[int, Verdict]) -> bytes:
        shown, tail = [], self.since.tail
        for number, event in enumerate(parts(self.form.end(stream, verdicts)), 1):
            point = ResumePoint(self.since.name, tuple(self.places), tail=number)
            if event == DONE:
                shown.append(event)
            elif number > tail:
                shown.append(b"id: %b\n%b" % (str(point).encode(), event))
        return b"".join(shown)

    def failure(self, error: PontilError) -> bytes:
        return self.form.failure(error)
