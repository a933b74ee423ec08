# SPDX-License-Identifier: Apache-2.0
"""A request that was read, tokenized and fitted, and can be submitted."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pontil.http.fields.sampling import SamplingFields
from pontil.http.openai.chat.request import ChatRequest
from pontil.runtime.proxy.fleet.registry_snapshot import RegistrySnapshot
from pontil.runtime.proxy.requests.generation import PromptWork
from pontil.runtime.proxy.requests.ticket import Ticket


@dataclass(frozen=True, slots=True)
class ReadyRequest:
    """Works that can be submitted by their `ticket`. `sampling` is as workers get it; `snapshot` is what all decisions
    used."""

    ticket: Ticket
    works: Sequence[PromptWork]
    sampling: SamplingFields
    snapshot: RegistrySnapshot


@dataclass(frozen=True, slots=True)
class ReadyChat(ReadyRequest):
    """A chat that can be submitted. `thinking` as in ReadPrompt."""

    wanted: ChatRequest
    thinking: bool

    @property
    def in_sound(self) -> bool:
        """True if it is answered in sound."""
        return self.wanted.audio is not None

    @property
    def prompt_details(self) -> dict[str, int]:
        """The tokens of the prompt's recordings and images, as usage tells of them; empty where it has none."""
        return {} if self.wanted.media is None else self.wanted.media.prompt_details


def as_recorded(ready: ReadyRequest, name: str) -> ReadyRequest:
    """Return a request, which an operator may send again, as it was recorded. Nothing that was computed before is
    found for it: all of it is computed again."""
    ticket = ready.ticket
    if ticket.replay is None:
        return ready
    for work, seed in zip(ready.works, ticket.replay.seeds, strict=False):
        work.params = replace(work.params, seed=seed)
    return replace(ready, ticket=replace(ticket, cache_salt=name))
