# SPDX-License-Identifier: Apache-2.0
"""Every message that crosses a process boundary, as frozen values.

`sender` is the incarnation (random per process start) of the process that sent it and `receiver` the incarnation it is
meant for, so that what a socket library kept for a dead process is recognised as stale by the one that replaced it.
Anything about a request carries `(request_id, attempt)`; anything about a transfer `(transfer_id, epoch)`.

The wire is that of version 0.1. From there on fields are only ever added, and only with a default: an older sender's
frame then decodes to that default.
"""

import re
from typing import get_args

from pontil.runtime.wire.adapter_messages import AdapterState, AdapterTable
from pontil.runtime.wire.graph_messages import (
    Inputs,
    NodeOutput,
    NodeTask,
    PassDone,
    ProducerDone,
    Release,
    Starved,
    StreamAck,
    StreamItem,
    StreamMark,
    Subscribe,
    Subscribed,
    Unread,
    Unsubscribe,
)
from pontil.runtime.wire.lease_messages import LeaseOrder, LeaseState, LeasesTold
from pontil.runtime.wire.rank_messages import (
    RankDone,
    RankHello,
    RankLoaded,
    RankPlan,
    RankPool,
    RankReady,
    RankRound,
    RankWelcome,
)
from pontil.runtime.wire.registration_messages import (
    SCHEMA,
    Goodbye,
    Heartbeat,
    Hello,
    PrefixDelta,
    PrefixRequest,
    Refused,
    RoleChange,
    StillHere,
    Welcome,
)
from pontil.runtime.wire.request_messages import (
    AttemptTimes,
    Cancel,
    Embed,
    Embedding,
    Failed,
    Logprobs,
    Progress,
    Step,
    Submit,
    Tokens,
)
from pontil.runtime.wire.transfer_messages import (
    Abandon,
    Begin,
    ChunkReady,
    Fetched,
    Greet,
    Greeting,
    Handoff,
    Renew,
    Withdrawn,
)

__all__ = [
    "Abandon",
    "AdapterState",
    "AdapterTable",
    "AttemptTimes",
    "Begin",
    "Cancel",
    "ChunkReady",
    "Embed",
    "Embedding",
    "Failed",
    "Fetched",
    "Goodbye",
    "Greet",
    "Greeting",
    "Handoff",
    "Heartbeat",
    "Hello",
    "Inputs",
    "LeaseOrder",
    "LeaseState",
    "LeasesTold",
    "Logprobs",
    "Message",
    "NodeOutput",
    "NodeTask",
    "PassDone",
    "PrefixDelta",
    "PrefixRequest",
    "ProducerDone",
    "Progress",
    "RankDone",
    "RankHello",
    "RankLoaded",
    "RankPlan",
    "RankPool",
    "RankReady",
    "RankRound",
    "RankWelcome",
    "Refused",
    "Release",
    "Renew",
    "RoleChange",
    "SCHEMA",
    "Starved",
    "Step",
    "StillHere",
    "StreamAck",
    "StreamItem",
    "StreamMark",
    "Submit",
    "Subscribe",
    "Subscribed",
    "TAGS",
    "Tokens",
    "Unread",
    "Unsubscribe",
    "Welcome",
    "Withdrawn",
]

# In the order of their tags' record (tests/support/checks/recorded_frames.py).
Message = (
    Hello | Welcome | Refused | Heartbeat | StillHere | Goodbye | RoleChange | Submit | Cancel | Tokens | Step
    | Progress | Failed | Greet | Greeting | Begin | ChunkReady | Handoff | Withdrawn | Renew | Fetched | Abandon
    | Embed | Embedding | RankHello | RankWelcome | RankLoaded | RankPool | RankReady | RankPlan | RankDone | RankRound
    | NodeTask | NodeOutput | PassDone | Inputs | Starved | Release | Subscribe | Subscribed | StreamItem
    | StreamMark | StreamAck | ProducerDone | Unsubscribe | Unread | PrefixDelta | PrefixRequest | AttemptTimes
    | LeaseOrder | LeaseState | LeasesTold | AdapterTable | AdapterState
)  # fmt: skip


def tag_of(kind: type[Message]) -> str:
    """Return the wire tag of a message: its class's name in lower case, with underscores between words. So a class
    keeps its name for as long as the wire does, and the name of one that is gone is never used again."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


TAGS: dict[str, type[Message]] = {tag_of(kind): kind for kind in get_args(Message)}
