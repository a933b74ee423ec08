# SPDX-License-Identifier: Apache-2.0
"""Recorded frames of the messages about models of several stages, as those of recorded_frames.py."""

from pontil.runtime.wire.messages import (
    Inputs,
    Message,
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

GRAPH_MESSAGES: dict[str, Message] = {
    "node_task": NodeTask(
        sender="px",
        receiver="n0",
        request_id="r.code2wav",
        attempt=1,
        node="code2wav",
        data=b"RIFF\x00",
        options={"voice": "ethan"},
        graph={"run": "r", "inputs": {"talker/code2wav/codes": [["d4", "ipc:///run/d"]]}},
        delivered=3,
        priority=-3,
        deadline=1.5,
        cache_salt="anna",
    ),
    "node_output": NodeOutput(
        sender="n0",
        receiver="px",
        request_id="r.code2wav",
        attempt=1,
        index=3,
        kind="audio",
        data=b"\x00\xff",
        final=True,
        sample_rate=24000,
        consumed=300,
        queue_seconds=0.25,
    ),
    "pass_done": PassDone(
        sender="d4",
        receiver="px",
        request_id="r",
        attempt=1,
        node="thinker",
        walk="thinker_decode",
        produced={"thinker/talker/states": 7},
        token_counts={"thinker/talker/states": 9},
        next_index={"a/thinker/b": 0},
        walks={"talker": "talker_decode"},
        done=True,
        passes=12,
    ),
    "inputs": Inputs(
        sender="px",
        receiver="n0",
        request_id="r.code2wav",
        attempt=1,
        edge="talker/code2wav/codes",
        producers=[["p3", "ipc:///run/p"], ["d4", "ipc:///run/d"]],
    ),
    "starved": Starved(
        sender="n0",
        receiver="px",
        request_id="r.code2wav",
        attempt=1,
        edge="talker/code2wav/codes",
        next_index=5,
        lost="d4",
    ),
    "release": Release(sender="px", receiver="d4", run="r"),
    "subscribe": Subscribe(
        sender="n0",
        receiver="d4",
        run="r",
        edge="talker/code2wav/codes",
        secret="ab",
        request_id="r.code2wav",
        attempt=1,
        next_index=5,
        walks=["code2wav_chunk"],
        damaged=[[5, 7]],
        consumed=4,
    ),
    "subscribed": Subscribed(
        sender="d4",
        receiver="n0",
        run="r",
        edge="talker/code2wav/codes",
        pool={"kind": "shm", "pid": 4712},
        reason="or not",
        first_index=0,
        handed_over_at=41,
    ),
    "stream_item": StreamItem(
        sender="d4",
        receiver="n0",
        run="r",
        edge="talker/code2wav/codes",
        attempt=1,
        index=5,
        walk="code2wav_chunk",
        shape=[1, 16],
        dtype="int32",
        epoch=9223372036854775807,
        slot=1,
        block_ids=[9, 0],
        digests=[77, 1],
    ),
    "stream_mark": StreamMark(
        sender="p3",
        receiver="d4",
        run="r",
        edge="thinker/talker/states",
        attempt=1,
        index=41,
        walk="talker_decode",
    ),
    "stream_ack": StreamAck(
        sender="n0",
        receiver="d4",
        run="r",
        edge="talker/code2wav/codes",
        attempt=1,
        taken=[5, 0],
        next_index=4,
    ),
    "producer_done": ProducerDone(
        sender="d4",
        receiver="n0",
        run="r",
        edge="talker/code2wav/codes",
        attempt=1,
        last_index=0,
    ),
    "unsubscribe": Unsubscribe(
        sender="n0", receiver="d4", run="r", edge="talker/code2wav/codes", attempt=1, finished=True
    ),
    "unread": Unread(sender="px", receiver="d4", run="r", edge="talker/code2wav/codes"),
}

GRAPH_RECORDED = {
    "node_task": (
        "8da174a96e6f64655f7461736ba673656e646572a27078a87265636569766572a26e30aa726571756573745f6964aa722e63"
        "6f646532776176a7617474656d707401a46e6f6465a8636f646532776176a464617461c4055249464600a76f7074696f6e73"
        "81a5766f696365a5657468616ea5677261706882a372756ea172a6696e7075747381b574616c6b65722f636f646532776176"
        "2f636f6465739192a26434ac6970633a2f2f2f72756e2f64a964656c69766572656403a87072696f72697479fda864656164"
        "6c696e65cb3ff8000000000000aa63616368655f73616c74a4616e6e61"
    ),
    "node_output": (
        "8ca174ab6e6f64655f6f7574707574a673656e646572a26e30a87265636569766572a27078aa726571756573745f6964aa72"
        "2e636f646532776176a7617474656d707401a5696e64657803a46b696e64a5617564696fa464617461c40200ffa566696e61"
        "6cc3ab73616d706c655f72617465cd5dc0a8636f6e73756d6564cd012cad71756575655f7365636f6e6473cb3fd000000000"
        "0000"
    ),
    "pass_done": (
        "8da174a9706173735f646f6e65a673656e646572a26434a87265636569766572a27078aa726571756573745f6964a172a761"
        "7474656d707401a46e6f6465a77468696e6b6572a477616c6bae7468696e6b65725f6465636f6465a870726f647563656481"
        "b57468696e6b65722f74616c6b65722f73746174657307ac746f6b656e5f636f756e747381b57468696e6b65722f74616c6b"
        "65722f73746174657309aa6e6578745f696e64657881ab612f7468696e6b65722f6200a577616c6b7381a674616c6b6572ad"
        "74616c6b65725f6465636f6465a4646f6e65c3a67061737365730c"
    ),
    "inputs": (
        "87a174a6696e70757473a673656e646572a27078a87265636569766572a26e30aa726571756573745f6964aa722e636f6465"
        "32776176a7617474656d707401a465646765b574616c6b65722f636f6465327761762f636f646573a970726f647563657273"
        "9292a27033ac6970633a2f2f2f72756e2f7092a26434ac6970633a2f2f2f72756e2f64"
    ),
    "starved": (
        "88a174a773746172766564a673656e646572a26e30a87265636569766572a27078aa726571756573745f6964aa722e636f64"
        "6532776176a7617474656d707401a465646765b574616c6b65722f636f6465327761762f636f646573aa6e6578745f696e64"
        "657805a46c6f7374a26434"
    ),
    "release": ("84a174a772656c65617365a673656e646572a27078a87265636569766572a26434a372756ea172"),
    "subscribe": (
        "8ca174a9737562736372696265a673656e646572a26e30a87265636569766572a26434a372756ea172a465646765b574616c"
        "6b65722f636f6465327761762f636f646573a6736563726574a26162aa726571756573745f6964aa722e636f646532776176"
        "a7617474656d707401aa6e6578745f696e64657805a577616c6b7391ae636f6465327761765f6368756e6ba764616d616765"
        "6491920507a8636f6e73756d656404"
    ),
    "subscribed": (
        "89a174aa73756273637269626564a673656e646572a26434a87265636569766572a26e30a372756ea172a465646765b57461"
        "6c6b65722f636f6465327761762f636f646573a4706f6f6c82a46b696e64a373686da3706964cd1268a6726561736f6ea66f"
        "72206e6f74ab66697273745f696e64657800ae68616e6465645f6f7665725f617429"
    ),
    "stream_item": (
        "8ea174ab73747265616d5f6974656da673656e646572a26434a87265636569766572a26e30a372756ea172a465646765b574"
        "616c6b65722f636f6465327761762f636f646573a7617474656d707401a5696e64657805a477616c6bae636f646532776176"
        "5f6368756e6ba57368617065920110a56474797065a5696e743332a565706f6368cf7fffffffffffffffa4736c6f7401a962"
        "6c6f636b5f696473920900a764696765737473924d01"
    ),
    "stream_mark": (
        "88a174ab73747265616d5f6d61726ba673656e646572a27033a87265636569766572a26434a372756ea172a465646765b574"
        "68696e6b65722f74616c6b65722f737461746573a7617474656d707401a5696e64657829a477616c6bad74616c6b65725f64"
        "65636f6465"
    ),
    "stream_ack": (
        "88a174aa73747265616d5f61636ba673656e646572a26e30a87265636569766572a26434a372756ea172a465646765b57461"
        "6c6b65722f636f6465327761762f636f646573a7617474656d707401a574616b656e920500aa6e6578745f696e64657804"
    ),
    "producer_done": (
        "87a174ad70726f64756365725f646f6e65a673656e646572a26434a87265636569766572a26e30a372756ea172a465646765"
        "b574616c6b65722f636f6465327761762f636f646573a7617474656d707401aa6c6173745f696e64657800"
    ),
    "unsubscribe": (
        "87a174ab756e737562736372696265a673656e646572a26e30a87265636569766572a26434a372756ea172a465646765b574"
        "616c6b65722f636f6465327761762f636f646573a7617474656d707401a866696e6973686564c3"
    ),
    "unread": (
        "85a174a6756e72656164a673656e646572a27078a87265636569766572a26434a372756ea172a465646765b574616c6b6572"
        "2f636f6465327761762f636f646573"
    ),
}

# Frames with required fields only.
GRAPH_SHORTEST = {
    "node_task": (
        "86a174a96e6f64655f7461736ba673656e646572a27078a87265636569766572a26e30aa726571756573745f6964aa722e63"
        "6f646532776176a7617474656d707401a46e6f6465a8636f646532776176"
    ),
    "node_output": (
        "88a174ab6e6f64655f6f7574707574a673656e646572a26e30a87265636569766572a27078aa726571756573745f6964aa72"
        "2e636f646532776176a7617474656d707401a5696e64657803a46b696e64a5617564696fa464617461c40200ff"
    ),
    "pass_done": (
        "87a174a9706173735f646f6e65a673656e646572a26434a87265636569766572a27078aa726571756573745f6964a172a761"
        "7474656d707401a46e6f6465a77468696e6b6572a477616c6bae7468696e6b65725f6465636f6465"
    ),
    "subscribe": (
        "88a174a9737562736372696265a673656e646572a26e30a87265636569766572a26434a372756ea172a465646765b574616c"
        "6b65722f636f6465327761762f636f646573a6736563726574a26162aa726571756573745f6964aa722e636f646532776176"
        "a7617474656d707401"
    ),
    "subscribed": (
        "85a174aa73756273637269626564a673656e646572a26434a87265636569766572a26e30a372756ea172a465646765b57461"
        "6c6b65722f636f6465327761762f636f646573"
    ),
    "unsubscribe": (
        "86a174ab756e737562736372696265a673656e646572a26e30a87265636569766572a26434a372756ea172a465646765b574"
        "616c6b65722f636f6465327761762f636f646573a7617474656d707401"
    ),
}
