# SPDX-License-Identifier: Apache-2.0
"""The adapters that a worker knows, which of them are in memory, and which leave it for others."""

from collections.abc import Collection
from dataclasses import dataclass, field

from pontil.runtime.engine.sequences.prompt_keys import UsedAdapter
from pontil.runtime.errors import AdapterError


@dataclass(slots=True)
class KnownAdapter:
    """An adapter: where its files are, the bytes that it takes while it is in memory, if it is, and the number of its
    last use. Of those that a worker begins with, the tokens of the `invocation` that activates it, if there are any."""

    used: UsedAdapter
    directory: str
    nbytes: int = 0
    is_loaded: bool = False
    last_use: int = 0
    invocation: tuple[int, ...] = ()


@dataclass(slots=True)
class KnownAdapters:
    """The adapters by their digests, and the digests by their names. All in memory have at most so many bytes of
    `memory`; None: any. Each has a number of its own for as long as it is known. Those of the launch always are: their
    requests come without a directory."""

    memory: int | None = None
    by_name: dict[str, str] = field(default_factory=dict)
    by_digest: dict[str, KnownAdapter] = field(default_factory=dict)
    of_launch: frozenset[str] = frozenset()
    uses: int = 0

    def know(self, digest: str, directory: str) -> KnownAdapter:
        """Know an adapter by its digest, whether or not a name stands for it."""
        if digest not in self.by_digest:
            taken = {one.used.number for one in self.by_digest.values()}
            number = next(number for number in range(len(taken) + 1) if number not in taken)
            self.by_digest[digest] = KnownAdapter(UsedAdapter(digest, number), directory)
        return self.by_digest[digest]

    def learn(self, name: str, digest: str, directory: str) -> KnownAdapter:
        """Have a name stand for an adapter from now on."""
        one = self.know(digest, directory)
        self.by_name[name], one.directory = digest, directory
        return one

    def unname(self, name: str) -> None:
        """Have a name stand for nothing. Its adapter stays known while requests ask for it."""
        self.by_name.pop(name, None)

    def named(self, name: str) -> UsedAdapter | None:
        digest = self.by_name.get(name)
        return None if digest is None else self.by_digest[digest].used

    @property
    def invocations(self) -> dict[str, list[int]]:
        """The tokens that activate adapters, by their names."""
        named = {name: self.by_digest[digest].invocation for name, digest in self.by_name.items()}
        return {name: list(tokens) for name, tokens in named.items() if tokens}

    def has_in_memory(self, digest: str) -> bool:
        """Return whether an adapter is in memory; the model as it is always is."""
        return not digest or (digest in self.by_digest and self.by_digest[digest].is_loaded)

    def use(self, digest: str) -> None:
        self.uses += 1
        self.by_digest[digest].last_use = self.uses

    @property
    def nbytes(self) -> int:
        """The bytes of all adapters in memory."""
        return sum(one.nbytes for one in self.by_digest.values() if one.is_loaded)

    def load(self, digest: str, nbytes: int) -> None:
        """Note that an adapter is in memory."""
        one = self.by_digest[digest]
        one.nbytes, one.is_loaded = nbytes, True
        self.use(digest)

    def room_for(self, source: object, nbytes: int, in_use: Collection[str]) -> list[KnownAdapter] | None:
        """Return those that have to leave memory for one of so many bytes, the ones that were used longest ago; None
        where too many are in use now. Raises AdapterError for one that never has room."""
        if self.memory is None:
            return []
        if nbytes > self.memory:
            says = f"{source} takes {nbytes} bytes, and --adapter-memory is {self.memory}"
            raise AdapterError(f"{says}: raise that, or make the adapter smaller")
        leaving, excess = list[KnownAdapter](), self.nbytes + nbytes - self.memory
        for one in sorted(self.by_digest.values(), key=lambda one: one.last_use):
            if excess > 0 and one.is_loaded and one.used.digest not in in_use:
                leaving.append(one)
                excess -= one.nbytes
        return leaving if excess <= 0 else None

    @property
    def nameless(self) -> list[KnownAdapter]:
        """The adapters that no name stands for any more, but for those of the launch that have left memory."""
        named = {*self.by_name.values()}
        return [
            one
            for digest, one in self.by_digest.items()
            if digest not in named and (one.is_loaded or digest not in self.of_launch)
        ]

    def forget(self, digest: str) -> None:
        """Know an adapter no more, unless it is the launch's. Its number is free."""
        if digest not in self.of_launch:
            del self.by_digest[digest]
