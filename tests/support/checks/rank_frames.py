# SPDX-License-Identifier: Apache-2.0
"""Recorded frames of the messages between the ranks of a worker, as those of recorded_frames.py."""

from pontil.runtime.wire.messages import (
    Message,
    RankDone,
    RankHello,
    RankLoaded,
    RankPlan,
    RankPool,
    RankReady,
    RankRound,
    RankWelcome,
)

RANK_MESSAGES: dict[str, Message] = {
    "rank_hello": RankHello(sender="f1", receiver="", rank=1, ranks=2, pid=4713),
    "rank_welcome": RankWelcome(sender="d4", receiver="f1", communicator={"kind": "shm", "pid": 4711}),
    "rank_loaded": RankLoaded(
        sender="f1",
        receiver="d4",
        rank=1,
        model_fingerprint="mf",
        kv_fingerprint="kf",
        kernels="avx2-0a1b2c3d",
        num_blocks=64,
    ),
    "rank_pool": RankPool(sender="d4", receiver="f1", num_blocks=60, first_epoch=9223372036854775807),
    "rank_ready": RankReady(
        sender="f1", receiver="d4", rank=1, pool={"kind": "shm", "pid": 4713}, left=bytes(range(16))
    ),
    "rank_plan": RankPlan(
        sender="d4",
        receiver="f1",
        number=7,
        epochs=[[1, 9223372036854775807]],
        copies=[[3, 0]],
        tiles=[{"ids": [0, 5, 262143]}],
        cleared=[[3, 15]],
        published=[[4, 2, 1, 9, 0]],
        forgotten=[5],
        attached={"p3": {"kind": "ranks", "pools": [{"kind": "shm", "pid": 4712}]}},
        detached=["p2"],
        pulls=[{"ticket": 1, "peer": "p3", "pairs": [[9, 5]], "slot": 1, "grant": ["r.1", 6, "ab"]}],
        cancelled=[1],
        stop=True,
        grants=[{"id": "r.2", "epoch": 6, "secret": "ab", "slot": 1}, {"id": "r.2", "blocks": [9]}, {"id": "r.2"}],
        recorded=[[9, -9223372036854775808]],
        dropped=[3],
        erased=[[2, 8]],
        accepted=[3, 0],
        adapters=[{"read": 3, "digest": "5a" * 32, "directory": "/sql"}, {"put": 2, "number": 1}],
    ),
    "rank_done": RankDone(
        sender="f1",
        receiver="d4",
        rank=1,
        number=7,
        digests=[[4, 9223372036854775807, 0]],
        pulls=[{"ticket": 1, "error": None, "epoch": 6, "bytes": 4096, "seconds": 0.5, "digests": [77]}],
        failed_peers={"p2": "it is not this host's"},
        received={"p3": 3},
        lost=["p1"],
        direct=["p3"],
        adapters=[{"read": 2, "nbytes": 4096}],
    ),
    "rank_round": RankRound(sender="f1", receiver="d4", number=9223372036854775807),
}

RANK_RECORDED = {
    "rank_hello": (
        "86a174aa72616e6b5f68656c6c6fa673656e646572a26631a87265636569766572a0a472616e6b01a572616e6b7302a3706964cd1269"
    ),
    "rank_welcome": (
        "84a174ac72616e6b5f77656c636f6d65a673656e646572a26434a87265636569766572a26631ac636f6d6d756e696361746f"
        "7282a46b696e64a373686da3706964cd1267"
    ),
    "rank_loaded": (
        "88a174ab72616e6b5f6c6f61646564a673656e646572a26631a87265636569766572a26434a472616e6b01b16d6f64656c5f"
        "66696e6765727072696e74a26d66ae6b765f66696e6765727072696e74a26b66a76b65726e656c73ad617678322d30613162"
        "32633364aa6e756d5f626c6f636b7340"
    ),
    "rank_pool": (
        "85a174a972616e6b5f706f6f6ca673656e646572a26434a87265636569766572a26631aa6e756d5f626c6f636b733cab6669"
        "7273745f65706f6368cf7fffffffffffffff"
    ),
    "rank_ready": (
        "86a174aa72616e6b5f7265616479a673656e646572a26631a87265636569766572a26434a472616e6b01a4706f6f6c82a46b"
        "696e64a373686da3706964cd1269a46c656674c410000102030405060708090a0b0c0d0e0f"
    ),
    "rank_plan": (
        "de0015a174a972616e6b5f706c616ea673656e646572a26434a87265636569766572a26631a66e756d62657207a665706f"
        "636873919201cf7fffffffffffffffa6636f7069657391920300a574696c65739181a3696473930005ce0003ffffa7636c"
        "65617265649192030fa97075626c697368656491950402010900a9666f72676f7474656e9105a8617474616368656481a2"
        "703382a46b696e64a572616e6b73a5706f6f6c739182a46b696e64a373686da3706964cd1268a8646574616368656491a2"
        "7032a570756c6c739185a67469636b657401a470656572a27033a5706169727391920905a4736c6f7401a56772616e7493"
        "a3722e3106a26162a963616e63656c6c65649101a473746f70c3a66772616e74739384a26964a3722e32a565706f636806"
        "a6736563726574a26162a4736c6f740182a26964a3722e32a6626c6f636b73910981a26964a3722e32a87265636f726465"
        "64919209d38000000000000000a764726f707065649103a665726173656491920208a86163636570746564920300a86164"
        "6170746572739283a47265616403a6646967657374d9403561356135613561356135613561356135613561356135613561"
        "3561356135613561356135613561356135613561356135613561356135613561356135613561a96469726563746f7279a4"
        "2f73716c82a370757402a66e756d62657201"
    ),
    "rank_done": (
        "8ca174a972616e6b5f646f6e65a673656e646572a26631a87265636569766572a26434a472616e6b01a66e756d62657207a7"
        "64696765737473919304cf7fffffffffffffff00a570756c6c739186a67469636b657401a56572726f72c0a565706f636806"
        "a56279746573cd1000a77365636f6e6473cb3fe0000000000000a764696765737473914dac6661696c65645f706565727381"
        "a27032b56974206973206e6f74207468697320686f73742773a8726563656976656481a2703303a46c6f737491a27031a664"
        "697265637491a27033a861646170746572739182a47265616402a66e6279746573cd1000"
    ),
    "rank_round": (
        "84a174aa72616e6b5f726f756e64a673656e646572a26631a87265636569766572a26434a66e756d626572cf7fffffffffffffff"
    ),
}

# Frames with required fields only.
RANK_SHORTEST = {
    "rank_pool": "84a174a972616e6b5f706f6f6ca673656e646572a26434a87265636569766572a26631aa6e756d5f626c6f636b733c",
    "rank_ready": (
        "85a174aa72616e6b5f7265616479a673656e646572a26631a87265636569766572a26434a472616e6b01a4706f6f6c82a46b"
        "696e64a373686da3706964cd1269"
    ),
    "rank_plan": "84a174a972616e6b5f706c616ea673656e646572a26434a87265636569766572a26631a66e756d62657207",
    "rank_done": ("85a174a972616e6b5f646f6e65a673656e646572a26631a87265636569766572a26434a472616e6b01a66e756d62657207"),
}
