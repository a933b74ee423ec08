# SPDX-License-Identifier: Apache-2.0
"""The ids of a stream's events: how much of each choice a reader has, from which the stream can be continued.

An id is the stream's name and, for each choice, the ids and characters that were told, with an `e` once its end was:
`NAME:12.57_9.40e`. Tokens that come together may make several events. Those before the last one also name the choice,
where it will be after them, and their number: `NAME:12.57_9.40+0.14.63.1`. What follows the choices, such as usage, is
numbered after a `u`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pontil.runtime.errors import RequestError

NUMBER = r"\d{1,9}"
PLACE = re.compile(rf"({NUMBER})\.({NUMBER})(e?)", re.ASCII)
PLACES = rf"{NUMBER}\.{NUMBER}e?(?:_{NUMBER}\.{NUMBER}e?){{0,127}}"
EVENT_ID = re.compile(
    rf"([0-9a-f]{{32}})(?::({PLACES})(?:u({NUMBER})|\+({NUMBER})\.({NUMBER})\.({NUMBER})(e?)\.({NUMBER}))?)?", re.ASCII
)
NOT_OF_STREAM = "Last-Event-ID is no event of this stream: send the last id that came"


class NoSuchEvent(RequestError):
    """An id that no event of the stream has."""

    def __init__(self) -> None:
        super().__init__(NOT_OF_STREAM)


@dataclass(frozen=True, slots=True)
class ChoicePlace:
    """The part of a choice that was told: ids, characters, and its end."""

    ids: int = 0
    characters: int = 0
    ended: bool = False

    def __str__(self) -> str:
        return f"{self.ids}.{self.characters}{'e' if self.ended else ''}"

    def has(self, other: "ChoicePlace") -> bool:
        """Return whether the other place is not behind this one."""
        is_reached = other.ids <= self.ids and other.characters <= self.characters
        return is_reached and (self.ended or not other.ended)


@dataclass(frozen=True, slots=True)
class GroupPlace:
    """The first `events` of those that lead a choice to `place`."""

    choice: int
    place: ChoicePlace
    events: int

    def follows(self, before: ChoicePlace) -> bool:
        """Return whether one part of a choice that was told up to `before` can lead to this place: some ids or text, or
        the end."""
        if self.events < 1 or before.ended:
            return False
        if self.place.ended:
            return (self.place.ids, self.place.characters) == (before.ids, before.characters)
        return self.place.has(before) and self.place != before


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """The events that the reader of a stream has: every one up to these places (none: from the beginning), then some
    `group`, or so many events of the `tail` after the choices."""

    name: str
    places: tuple[ChoicePlace, ...] = ()
    group: GroupPlace | None = None
    tail: int = 0

    def __str__(self) -> str:
        text = f"{self.name}:{'_'.join(map(str, self.places))}"
        if self.group is not None:
            return f"{text}+{self.group.choice}.{self.group.place}.{self.group.events}"
        return f"{text}u{self.tail}" if self.tail else text

    def check(self, choices: int, budget: int) -> None:
        """Raise RequestError if no stream of so many choices, with at most `budget` ids each, has this point."""
        if not self.places:
            return
        group = self.group
        fits = len(self.places) == choices and all(place.ids <= budget for place in self.places)
        if group is not None:
            fits = fits and group.place.ids <= budget
        if not fits or not self.is_possible:
            raise NoSuchEvent

    @property
    def is_possible(self) -> bool:
        """False if the parts of this point contradict each other, so that no stream has it."""
        group = self.group
        if group is not None:
            return group.choice < len(self.places) and group.follows(self.places[group.choice])
        return not self.tail or all(place.ended for place in self.places)

    @property
    def has_part(self) -> bool:
        """True if the reader has any token. The proxy that told it may have ended before it recorded that."""
        return self.group is not None or any(place.ids for place in self.places)

    def place(self, choice: int) -> ChoicePlace:
        return self.places[choice] if self.places else ChoicePlace()

    def group_of(self, choice: int) -> GroupPlace | None:
        return self.group if self.group is not None and self.group.choice == choice else None


def read_event_id(text: str) -> ResumePoint:
    """Parse the header Last-Event-ID. Raises RequestError."""
    match = EVENT_ID.fullmatch(text.strip())
    if match is None:
        raise RequestError(
            "Last-Event-ID is no event's id of a stream here: send the last id that came, or the stream's own "
            "from the header x-pontil-stream"
        )
    name, places, tail, choice, ids, characters, end_mark, events = match.groups()
    group = None
    if choice is not None:
        group = GroupPlace(int(choice), ChoicePlace(int(ids), int(characters), bool(end_mark)), int(events))
    choice_places = tuple(map(place_of, (places or "").split("_"))) if places else ()
    point = ResumePoint(name, choice_places, group, int(tail or 0))
    if not point.is_possible:
        raise NoSuchEvent
    return point


def place_of(text: str) -> ChoicePlace:
    match = PLACE.fullmatch(text)
    assert match is not None, "the whole id was matched"
    return ChoicePlace(int(match[1]), int(match[2]), bool(match[3]))


def parts(data: bytes) -> Sequence[bytes]:
    """Return each event of these: JSON has no line ends."""
    return [part + b"\n\n" for part in data.split(b"\n\n") if part]
