# SPDX-License-Identifier: Apache-2.0
"""Messages about leases on prefixes, between a proxy and its workers. A lease is asked for by `lease` of a Submit."""

from dataclasses import dataclass

# The actions of an order.
EXTEND, RELEASE, RESUME, REFUND, LET_GO = "extend", "release", "resume", "refund", "let_go"
# The reason of a worker that was told to let go: another one has the lease, and says so itself.
MOVED = "another worker has it"
# The reason of one whose lease no other worker took.
DRAINS = "its worker drains, and no other one took it"
# The reason of one whose worker drains since its model goes to sleep: none is left to take it.
SLEEPS = "its model was put to sleep, as another one was asked for"
# The reason of one that its worker held on to, when the proxy that bills it had ended it.
SETTLED = "the proxy that bills it had ended it before"
# The state of a lease that was not granted, beside those in runtime/cache/leases/lease.py.
REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class LeaseOrder:
    """From proxy to worker: do this with a lease. To "extend" it is to keep it for so many `seconds` in all. To
    "resume" it is to keep what an earlier process left here, or what was computed here: the blocks with these `keys`,
    one behind the other, of a lease that began `age` seconds ago; its `prompt`, `salt`, `adapter`, `adapter_directory`
    and `adapter_start` are as in LeaseState. To "refund" it is to end it, as no other worker takes it from one that
    drains, or the proxy that bills it has ended it; to "let_go" of it the same, as another one has it, which took it
    later: by more `moves` than this worker. Answered by a LeaseState if that changes anything."""

    sender: str
    receiver: str
    lease_id: str
    action: str
    seconds: int = 0
    owner: str = ""
    keys: bytes = b""
    age: float = 0.0
    prompt: bytes = b""
    salt: str = ""
    adapter: str = ""
    moves: int = 0
    adapter_directory: str = ""
    adapter_start: int = 0


@dataclass(frozen=True, slots=True)
class LeaseState:
    """From worker to every proxy: a lease was granted, changed or ended. It was granted for so many `seconds` in all,
    and began `age` seconds before it ended, or before this message. `size` is in bytes. `proxy` is the one that bills
    it. `keys` are those of its blocks, on the first message about it after a registration. A `reason` says why it was
    refused or refunded. It is sent before the tokens of the step that computed its prompt. The `prompt`, token ids of 4
    bytes, comes with the keys where it is known; it is found with this `salt` and the `adapter` of this digest, in use
    from the position `adapter_start` on, of which the `adapter_directory` has the files where it came while the launch
    runs: who begins later knows no other way to it. The sender was given it by so many `moves` from one worker to
    another: of two that hold it, the one with more has it."""

    sender: str
    receiver: str
    lease_id: str
    owner: str
    proxy: str
    state: str
    tokens: int
    size: int
    seconds: int
    age: float
    reason: str | None = None
    keys: bytes = b""
    prompt: bytes = b""
    salt: str = ""
    adapter: str = ""
    moves: int = 0
    adapter_directory: str = ""
    adapter_start: int = 0


@dataclass(frozen=True, slots=True)
class LeasesTold:
    """From worker to proxy: I have registered, and these are all leases that I hold; each was told before."""

    sender: str
    receiver: str
    lease_ids: list[str]
