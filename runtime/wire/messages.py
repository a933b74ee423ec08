# SPDX-License-Identifier: Apache-2.0
"""Every message that crosses a process boundary, as frozen values.

`sender` is the incarnation (random per process start) of the process that sent it and `receiver` the incarnation it is
meant for, so that what a socket library kept for a dead process is recognised as stale by the one that replaced it.
Anything about a request carries `(request_id, attempt)`; anything about a transfer `(transfer_id, epoch)`.

The wire is that of version 0.1. From there on fields are only ever added, and only with a default: an older sender's
frame then decodes to that default.
"""

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

Message = (
    Hello | Welcome | Refused | Heartbeat | StillHere | Goodbye | RoleChange | Submit | Cancel | Tokens | Step
    | Progress | Failed | Greet | Greeting | Begin | ChunkReady | Handoff | Withdrawn | Renew | Fetched | Abandon
    | RankHello | RankWelcome | RankLoaded | RankPool | RankReady | RankPlan | RankDone | RankRound
    | Embed | Embedding | PrefixDelta | PrefixRequest
    | NodeTask | NodeOutput | PassDone | Inputs | Starved | Release | Unread
    | Subscribe | Subscribed | StreamItem | StreamMark | StreamAck | ProducerDone | Unsubscribe
    | AttemptTimes
)  # fmt: skip

# The wire tag of each message. Tags are never reused.
TAGS: dict[str, type[Message]] = {
    "hello": Hello,
    "welcome": Welcome,
    "refused": Refused,
    "heartbeat": Heartbeat,
    "still_here": StillHere,
    "goodbye": Goodbye,
    "role_change": RoleChange,
    "submit": Submit,
    "cancel": Cancel,
    "tokens": Tokens,
    "step": Step,
    "progress": Progress,
    "failed": Failed,
    "greet": Greet,
    "greeting": Greeting,
    "begin": Begin,
    "chunk_ready": ChunkReady,
    "handoff": Handoff,
    "withdrawn": Withdrawn,
    "renew": Renew,
    "fetched": Fetched,
    "abandon": Abandon,
    "embed": Embed,
    "embedding": Embedding,
    "rank_hello": RankHello,
    "rank_welcome": RankWelcome,
    "rank_loaded": RankLoaded,
    "rank_pool": RankPool,
    "rank_ready": RankReady,
    "rank_plan": RankPlan,
    "rank_done": RankDone,
    "rank_round": RankRound,
    "node_task": NodeTask,
    "node_output": NodeOutput,
    "pass_done": PassDone,
    "inputs": Inputs,
    "starved": Starved,
    "release": Release,
    "subscribe": Subscribe,
    "subscribed": Subscribed,
    "stream_item": StreamItem,
    "stream_mark": StreamMark,
    "stream_ack": StreamAck,
    "producer_done": ProducerDone,
    "unsubscribe": Unsubscribe,
    "unread": Unread,
    "prefix_delta": PrefixDelta,
    "prefix_request": PrefixRequest,
    "attempt_times": AttemptTimes,
}
