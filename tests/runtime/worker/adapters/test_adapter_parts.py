# SPDX-License-Identifier: Apache-2.0
"""The ranks of a worker have the same adapters at the same step: all read one, or none computes with it."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from pontil.gpu_ops.collectives.communicator import Communicator
from pontil.gpu_ops.parameters.adapters import MadeAdapter
from pontil.runtime.disaggregation.rank_orders import RankOrders
from pontil.runtime.errors import AdapterError, TransferError
from pontil.runtime.loaders.hf.adapter import PeftAdapter
from pontil.runtime.models.adapters import ModelAdapters
from pontil.runtime.wire.messages import RankDone
from pontil.runtime.worker.adapters import adapter_reader
from pontil.runtime.worker.adapters.adapter_parts import AdapterParts, FollowedAdapters
from pontil.runtime.worker.adapters.adapter_reader import AdapterJob, AdapterReader, bytes_of_all

DIGESTS = {name: f"{place:02x}" * 32 for place, name in enumerate("ab", 1)}


class RankModel:
    """The model of one rank, with what it computes with by its numbers, and what it reads of each directory."""

    def __init__(self, rank: int) -> None:
        self.rank, self.numbers = rank, dict[int, str]()
        self.files = {f"/{name}": digest for name, digest in DIGESTS.items()}
        self.jobs: list[AdapterJob] = []

    def remove(self, number: int) -> None:
        self.numbers.pop(number, None)

    def reader(self) -> AdapterReader:
        made = AdapterReader(cast(ModelAdapters, self), lambda: None)
        cast(Any, made).put = self.jobs.append
        return made


class AdapterRanks:
    """A driver and two followers, whose orders and answers travel by hand."""

    def __init__(self) -> None:
        self.models = [RankModel(rank) for rank in range(3)]
        readers = [model.reader() for model in self.models]
        self.orders = RankOrders(3)
        self.parts = AdapterParts(cast(ModelAdapters, self.models[0]), readers[0], self.orders)
        self.followers = [
            FollowedAdapters(cast(ModelAdapters, model), reader)
            for model, reader in zip(self.models[1:], readers[1:], strict=True)
        ]

    def send(self) -> None:
        """Have the followers obey what was ordered."""
        _, fields = self.orders.take()
        for follower in self.followers:
            follower.obey(fields.get("adapters", []))

    def read(self, *ranks: int) -> None:
        """Have these ranks read what they were told to, and answer."""
        for rank in ranks:
            reader = self.parts.reader if rank == 0 else self.followers[rank - 1].reader
            for job in self.models[rank].jobs:
                reader.read(job)
            self.models[rank].jobs.clear()
            if rank:
                self.parts.answered(RankDone("f", "d", rank, 1, **self.followers[rank - 1].report()))

    @property
    def computed(self) -> list[dict[int, str]]:
        return [model.numbers for model in self.models]


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[AdapterRanks]:
    def make(model: Any, directory: str, source: str) -> tuple[PeftAdapter, MadeAdapter]:
        if directory not in model.files:
            raise AdapterError(f"{source} is gone")
        digest = model.files[directory]
        return PeftAdapter(digest, {}), MadeAdapter(
            10 + model.rank, lambda number: model.numbers.update({number: digest})
        )

    monkeypatch.setattr(adapter_reader, "make_adapter", make)
    yield AdapterRanks()


def test_an_adapter_is_computed_once_all_ranks_have_read_it(ranks: AdapterRanks) -> None:
    ranks.parts.read(DIGESTS["a"], "/a")
    ranks.send()
    ranks.read(0, 2)
    assert not ranks.parts.take()
    ranks.read(1)
    (read,) = ranks.parts.take()
    assert (read.job.digest, read.nbytes, read.reason) == (DIGESTS["a"], 33, "")
    ranks.parts.put(read, 5)
    assert ranks.computed == [{5: DIGESTS["a"]}, {}, {}], "the others do so before the next rows"
    ranks.send()
    assert ranks.computed == [{5: DIGESTS["a"]}] * 3
    ranks.parts.remove(5)
    ranks.send()
    assert ranks.computed == [{}] * 3


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
@pytest.mark.parametrize("wrong", [0, 1])
def test_what_one_rank_cannot_read_no_rank_keeps(ranks: AdapterRanks, wrong: int, order: tuple[int, ...]) -> None:
    ranks.models[wrong].files["/a"] = DIGESTS["b"]
    ranks.parts.read(DIGESTS["a"], "/a")
    ranks.send()
    found = []
    for rank in order:
        ranks.read(rank)
        found += ranks.parts.take()
        ranks.send()
    (read,) = found
    assert read.made is None and read.reason == "rank 1: " * wrong + "/a has other files than those that were loaded"
    assert not any(follower.read or follower.unwanted for follower in ranks.followers) and not ranks.parts.reading
    # It is read again, by another number: the answers to that one are told from these.
    ranks.models[wrong].files["/a"] = DIGESTS["a"]
    ranks.parts.read(DIGESTS["a"], "/a")
    ranks.send()
    ranks.read(0, 1, 2)
    assert [one.reason for one in ranks.parts.take()] == [""]


def test_an_adapter_of_a_number_that_another_had_comes_after_it(ranks: AdapterRanks) -> None:
    for name in "ab":
        ranks.parts.read(DIGESTS[name], f"/{name}")
    ranks.send()
    ranks.read(0, 1, 2)
    first, second = ranks.parts.take()
    ranks.parts.put(first, 0)
    ranks.parts.remove(0)
    ranks.parts.put(second, 0)
    ranks.send()
    assert ranks.computed == [{0: DIGESTS["b"]}] * 3


@pytest.mark.parametrize("order", [{}, {"put": 3}, {"put": 3, "number": 0}, {"read": [], "digest": ""}, {"read": 1}])
def test_an_order_that_cannot_be_read_is_refused(ranks: AdapterRanks, order: dict[str, Any]) -> None:
    with pytest.raises(TransferError, match="about adapters cannot be read"):
        ranks.followers[0].obey([order])


def test_ranks_that_start_with_other_files_are_refused() -> None:
    def gathered(part: torch.Tensor, other: str) -> torch.Tensor:
        words = torch.frombuffer(bytearray.fromhex(other), dtype=torch.int64)
        return torch.cat([part, torch.cat([words, torch.tensor([7])]).view(1, -1)], dim=1)

    def meeting(other: str) -> Communicator:
        return cast(Communicator, SimpleNamespace(size=2, gather_columns=lambda part: gathered(part, other)))

    assert bytes_of_all(meeting(DIGESTS["a"]), DIGESTS["a"], 5, "the adapter a") == 12
    with pytest.raises(AdapterError, match="the adapter a has other files at other ranks"):
        bytes_of_all(meeting(DIGESTS["b"]), DIGESTS["a"], 5, "the adapter a")
