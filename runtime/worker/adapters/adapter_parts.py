# SPDX-License-Identifier: Apache-2.0
"""The parts that the ranks of a worker have of an adapter, as rank 0 has them read, computed and removed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pontil.gpu_ops.parameters.adapters import MadeAdapter
from pontil.runtime.disaggregation.rank_orders import RankOrders
from pontil.runtime.errors import TransferError
from pontil.runtime.models.adapters import ModelAdapters
from pontil.runtime.wire.messages import RankDone
from pontil.runtime.worker.adapters.adapter_reader import AdapterJob, AdapterRead, AdapterReader


@dataclass(slots=True)
class PartsRead:
    """A reading by all ranks: the bytes that each part takes, by rank, and what rank 0 has read itself."""

    job: AdapterJob
    nbytes: dict[int, int] = field(default_factory=dict)
    own: AdapterRead | None = None


class AdapterParts:
    """The adapters of a model over all ranks of its worker, which may be one. An adapter has been read once all ranks
    have, or has failed for all. It is put and removed between the same two steps everywhere: the `orders` to followers
    travel with the next plan, before its rows."""

    def __init__(self, model: ModelAdapters, reader: AdapterReader, orders: RankOrders) -> None:
        self.model, self.reader, self.orders = model, reader, orders
        self.reading: dict[int, PartsRead] = {}
        self.found: list[AdapterRead] = []
        self.last = 0

    def read(self, digest: str, directory: str) -> None:
        """Have all ranks read their parts."""
        self.last += 1
        job = AdapterJob(self.last, digest, directory)
        self.reading[job.number] = PartsRead(job)
        self.reader.put(job)
        self.orders.add("adapters", {"read": job.number, "digest": digest, "directory": directory})

    def answered(self, done: RankDone) -> None:
        """Take what a follower says of its parts."""
        for told in done.adapters:
            self.heard(told.get("read"), done.rank, told.get("nbytes"), str(told.get("reason", "")))

    def heard(self, number: Any, rank: int, nbytes: Any, reason: str, own: AdapterRead | None = None) -> None:
        """Take the outcome of one rank. That of a reading which has failed elsewhere is no news."""
        one = self.reading.get(number)
        if one is None:
            return
        if reason or not isinstance(nbytes, int):
            del self.reading[number]
            self.drop(AdapterRead(one.job, None))
            reason = reason or "it does not say how large its part is"
            self.found.append(AdapterRead(one.job, None, reason=f"rank {rank}: {reason}" if rank else reason))
            return
        one.nbytes[rank], one.own = nbytes, own or one.own
        if len(one.nbytes) == self.orders.ranks and one.own is not None:
            del self.reading[number]
            self.found.append(replace(one.own, nbytes=sum(one.nbytes.values())))

    def take(self) -> list[AdapterRead]:
        """Return the readings that have ended since the last call. Their bytes are those of all ranks."""
        for read in self.reader.take():
            self.heard(read.job.number, 0, read.nbytes, read.reason, read)
        found, self.found = self.found, []
        return found

    def put(self, read: AdapterRead, number: int) -> None:
        """Have all ranks compute with an adapter that was read, for rows of this number. No step runs now."""
        assert read.made is not None
        self.orders.add("adapters", {"put": read.job.number, "number": number})
        read.made.put(number)

    def drop(self, read: AdapterRead) -> None:
        """Have all ranks forget what they have read."""
        self.orders.add("adapters", {"drop": read.job.number})

    def remove(self, number: int) -> None:
        """Have all ranks compute no more with the adapter of this number, and free its memory. No step runs now."""
        self.orders.add("adapters", {"remove": number})
        self.model.remove(number)

    def close(self) -> None:
        self.reader.close()


class FollowedAdapters:
    """The parts of one follower. `obey` the orders of a plan before its rows; `report` after it, and whenever the
    reader wakes the process."""

    def __init__(self, model: ModelAdapters, reader: AdapterReader) -> None:
        self.model, self.reader = model, reader
        # Those that were read, by the number of the reading, and the numbers of those that are not wanted any more.
        self.read: dict[int, MadeAdapter] = {}
        self.unwanted: set[int] = set()
        self.open: set[int] = set()

    def obey(self, orders: Sequence[Mapping[str, Any]]) -> None:
        """Carry out the orders of a plan, in their order. Raises TransferError for one that cannot be read."""
        for order in orders:
            try:
                self.carry_out(order)
            except (KeyError, TypeError) as error:
                says = f"an order of the driver about adapters cannot be read ({error!r})"
                raise TransferError(f"{says}: start the worker again") from error

    def carry_out(self, order: Mapping[str, Any]) -> None:
        if "read" in order:
            self.open.add(order["read"])
            self.reader.put(AdapterJob(order["read"], order["digest"], order["directory"]))
        elif "put" in order:
            self.read.pop(order["put"]).put(order["number"])
        elif "drop" in order:
            if order["drop"] in self.open:
                self.unwanted.add(order["drop"])
            self.read.pop(order["drop"], None)
        else:
            self.model.remove(order["remove"])

    def report(self) -> dict[str, Any]:
        """Return the field of a RankDone that has news since the last call; empty if there is none."""
        found = self.reader.take()
        for one in found:
            self.open.discard(one.job.number)
            if one.job.number in self.unwanted:
                self.unwanted.discard(one.job.number)
            elif one.made is not None:
                self.read[one.job.number] = one.made
        told = [
            {"read": one.job.number} | ({"reason": one.reason} if one.reason else {"nbytes": one.nbytes})
            for one in found
        ]
        return {"adapters": told} if told else {}

    def close(self) -> None:
        self.reader.close()
