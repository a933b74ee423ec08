# SPDX-License-Identifier: Apache-2.0
"""Wire frames in hexadecimal, and the messages they encode (rule A4).

They are recorded at version 0.1, the first whose frames count: a new field of a message is no reason to change them,
since deployed processes keep sending the old form. A new message is added to MESSAGES and RECORDED.
"""

from adapter_frames import ADAPTER_MESSAGES, ADAPTER_RECORDED
from graph_frames import GRAPH_MESSAGES, GRAPH_RECORDED
from lease_frames import LEASE_MESSAGES, LEASE_RECORDED
from rank_frames import RANK_MESSAGES, RANK_RECORDED
from times_frames import TIMES_MESSAGES, TIMES_RECORDED

from pontil.runtime.wire.messages import (
    Abandon,
    Begin,
    Cancel,
    ChunkReady,
    Embed,
    Embedding,
    Failed,
    Fetched,
    Goodbye,
    Greet,
    Greeting,
    Handoff,
    Heartbeat,
    Hello,
    Message,
    PrefixDelta,
    PrefixRequest,
    Progress,
    Refused,
    Renew,
    RoleChange,
    Step,
    StillHere,
    Submit,
    Tokens,
    Welcome,
    Withdrawn,
)

# Every field has a value other than its default; token id 0 and the largest numbers are included.
MESSAGES: dict[str, Message] = {
    "hello": Hello(
        sender="d4",
        schema=1,
        name="decode:0",
        role="decode",
        pid=4711,
        device="cpu",
        model="tiny",
        model_fingerprint="mf",
        kv_fingerprint="kf",
        peer_endpoint="ipc:///run/d",
        block_size=16,
        num_blocks=64,
        max_num_seqs=8,
        max_model_len=512,
        max_num_batched_tokens=256,
        kernels="avx2-0a1b2c3d",
        dtype="float32",
        draining=True,
        grammars="llguidance 1.9.1",
        kv_cache_dtype="int8",
        embedding_size=384,
        node="thinker",
        revision="2026-11",
        tokenizer_digest="ab" * 32,
        version="0.2.0",
        registration=7,
        adapters={"sql": "5a" * 32},
        loads_adapters=True,
        invocations={"sql": [9, 14]},
    ),
    "welcome": Welcome("px", "d4", True, "prefill", True, True, True, True, True, True),
    "refused": Refused(sender="px", receiver="d4", reason="another model"),
    "heartbeat": Heartbeat(
        sender="d4",
        receiver="px",
        running=2,
        waiting=1,
        free_blocks=60,
        step=99,
        counters={"preemptions": 3},
        gauges={"rss_bytes": 1},
        others={"proxies": 1, "in_flight": 2, "taken": 3, "uncomputed": 40},
        lost_peers=["p3"],
    ),
    "still_here": StillHere(sender="px", receiver="d4"),
    "goodbye": Goodbye(sender="d4", receiver="px", drained=True, for_good=True),
    "role_change": RoleChange(sender="d4", receiver="px", role="prefill", draining=True),
    "submit": Submit(
        sender="px",
        receiver="d4",
        request_id="r",
        attempt=1,
        prompt=[0, 5, 262143],
        sampling={"max_tokens": 8, "seed": 3},
        phase="decode",
        transfer_id="r.1",
        peer="p3",
        peer_endpoint="ipc:///run/p",
        cache_salt="alice",
        delivered=[[0, 7], [], [9]],
        choices=[0, 2],
        transfer_secret="ab",
        priority=-3,
        deadline=1.5,
        graph={"run": "r", "node": "thinker"},
        frames=[[7, 0], []],
        traceparent="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        caller="0123456789abcdef",
        weight=2.0,
        peer_blocks=[3, 0],
        lease={"id": "prefix-1", "owner": "ada", "seconds": 60, "tokens": 16, "must": True},
        adapter="5a" * 32,
        adapter_directory="/a",
        adapter_start=5,
    ),
    "cancel": Cancel(sender="px", receiver="d4", request_id="r", attempt=1),
    "tokens": Tokens(
        sender="d4",
        receiver="px",
        request_id="r",
        attempt=1,
        index=4,
        ids=[0],
        choice=2,
        finish_reason="stop",
        stop_match="<>",
        generated_tokens=4,
        prompt_tokens=3,
        cached_tokens=2,
        logprobs=[[[0, -0.25, 1], [7, -1.5, 2]]],
        prompt_logprobs=[[], [[5, -2.0, 3]]],
        queue_seconds=0.25,
        computed_tokens=1,
        draft_tokens=4,
        accepted_draft_tokens=0,
        first_cached_tokens=0,
        pulled_bytes=0,
        pulled_seconds=0.5,
        pull_error="not the same",
        frames=[[7, 0]],
        kept_blocks=[3, 0],
        top_logits=b"\x07\x00\x00\x00\x00\x00\x80?",
    ),
    "step": Step(
        "d4", "px", ["r1", "r2"], [[1, 0, 7, 3, 2, 0], [0, 2, 9, 65, 64, 5, 4294967295]], [b"", b"\x07\0\0\0\0\0\x80?"]
    ),
    "progress": Progress(sender="p3", receiver="px", request_id="r", attempt=1, computed=512, cached_tokens=16),
    "failed": Failed(
        sender="d4", receiver="px", request_id="r", attempt=1, reason="no room", status=400, moved=True, late=True
    ),
    "greet": Greet(
        sender="d4",
        receiver="p3",
        schema=1,
        name="decode:0",
        model_fingerprint="mf",
        kv_fingerprint="kf",
        dtype="float32",
        block_size=16,
        kernels="avx2-0a1b2c3d",
        kv_cache_dtype="int8",
        ranks=2,
    ),
    "greeting": Greeting(sender="p3", receiver="d4", pool={"kind": "shm", "pid": 4712}, reason="or not", ranks=2),
    "begin": Begin(
        sender="d4",
        receiver="p3",
        transfer_id="r.1",
        request_id="r",
        attempt=1,
        have=2,
        ranks=2,
        staged=False,
        prompt_digest="5b",
    ),
    "chunk_ready": ChunkReady(
        sender="p3",
        receiver="d4",
        transfer_id="r.1",
        epoch=6,
        slot=1,
        first=2,
        block_ids=[9, 0],
        digests=[18446744073709551615, 1],
    ),
    "handoff": Handoff(
        sender="p3",
        receiver="d4",
        transfer_id="r.1",
        epoch=6,
        slot=1,
        first=4,
        block_ids=[3],
        digests=[77],
        computed=65,
        first_tokens=[0, 7, 9],
        prompt_tokens=65,
        cached_tokens=64,
        kv_fingerprint="kf",
        prefill_seconds=0.5,
        choices=[0, 2],
        logprobs=[[[0, -0.25, 1], [7, -1.5, 2]]],
        draft_tokens=[[0, 7], [], [9]],
        frames=[[7, 0]],
        next_index=9,
        hidden_state=b"\x00\x00\x80?\x00\x00\x00\xc0",
        hidden_digest="f76600d11c87295e0d0a3f146dfdff06",
        top_logits=[b"\x07\x00\x00\x00\x00\x00\x80?"],
    ),
    "withdrawn": Withdrawn(sender="p3", receiver="d4", transfer_id="r.1", finished=True, reason="finished"),
    "renew": Renew(sender="d4", receiver="p3", transfer_id="r.1", epoch=6),
    "fetched": Fetched(sender="d4", receiver="p3", transfer_id="r.1", epoch=6),
    "abandon": Abandon(sender="d4", receiver="p3", transfer_id="r.1", reason="cancelled"),
    "embed": Embed(
        sender="px",
        receiver="e0",
        request_id="r",
        attempt=1,
        prompt=[0, 5, 30521],
        dimensions=128,
        priority=-3,
        deadline=1.5,
        types=[0, 0, 1],
    ),
    "embedding": Embedding(
        sender="e0",
        receiver="px",
        request_id="r",
        attempt=1,
        vector=b"\x00\x00\x80?\x00\x00\x00\x00",
        prompt_tokens=3,
        computed_tokens=3,
        queue_seconds=0.25,
    ),
    **RANK_MESSAGES,
    **GRAPH_MESSAGES,
    "prefix_delta": PrefixDelta(
        sender="d4",
        receiver="px",
        number=7,
        added=b"\x00\x01\x02\x03\x04\x05\x06\x07\x08\t\n\x0b\x0c\r\x0e\x0f",
        removed=b"\xff\xff\xff\xff\xff\xff\xff\xff",
    ),
    "prefix_request": PrefixRequest(sender="px", receiver="d4"),
    **TIMES_MESSAGES,
    **LEASE_MESSAGES,
    **ADAPTER_MESSAGES,
}

# MESSAGES in the wire format of 0.1.
RECORDED = {
    "hello": (
        "de001ea174a568656c6c6fa673656e646572a26434a6736368656d6101a46e616d65a86465636f64653a30a4726f6c65a664"
        "65636f6465a3706964cd1267a6646576696365a3637075a56d6f64656ca474696e79b16d6f64656c5f66696e676572707269"
        "6e74a26d66ae6b765f66696e6765727072696e74a26b66ad706565725f656e64706f696e74ac6970633a2f2f2f72756e2f64"
        "aa626c6f636b5f73697a6510aa6e756d5f626c6f636b7340ac6d61785f6e756d5f7365717308ad6d61785f6d6f64656c5f6c"
        "656ecd0200b66d61785f6e756d5f626174636865645f746f6b656e73cd0100a76b65726e656c73ad617678322d3061316232"
        "633364a56474797065a7666c6f61743332a8647261696e696e67c3a86772616d6d617273b06c6c67756964616e636520312e"
        "392e31ae6b765f63616368655f6474797065a4696e7438ae656d62656464696e675f73697a65cd0180a46e6f6465a7746869"
        "6e6b6572a87265766973696f6ea7323032362d3131a776657273696f6ea5302e322e30ac726567697374726174696f6e07b0"
        "746f6b656e697a65725f646967657374d9406162616261626162616261626162616261626162616261626162616261626162"
        "6162616261626162616261626162616261626162616261626162616261626162a8616461707465727381a373716cd9403561"
        "3561356135613561356135613561356135613561356135613561356135613561356135613561356135613561356135613561"
        "356135613561356135613561ae6c6f6164735f6164617074657273c3ab696e766f636174696f6e7381a373716c92090e"
    ),
    "welcome": (
        "8ba174a777656c636f6d65a673656e646572a27078a87265636569766572a26434a57374657073c3a4726f6c65a770726566696c6ca864"
        "7261696e696e67c3a87072656669786573c3a574696d6573c3a66c6561736573c3a86164617074657273c3ab737465705f6c6f67697473"
        "c3"
    ),
    "refused": (
        "84a174a772656675736564a673656e646572a27078a87265636569766572a26434a6726561736f6ead616e6f74686572206d6f64656c"
    ),
    "heartbeat": (
        "8ba174a9686561727462656174a673656e646572a26434a87265636569766572a27078a772756e6e696e6702a777616974696e6701ab66"
        "7265655f626c6f636b733ca47374657063a8636f756e7465727381ab707265656d7074696f6e7303a667617567657381a97273735f6279"
        "74657301a66f746865727384a770726f7869657301a9696e5f666c6967687402a574616b656e03aa756e636f6d707574656428aa6c6f73"
        "745f706565727391a27033"
    ),
    "still_here": "83a174aa7374696c6c5f68657265a673656e646572a27078a87265636569766572a26434",
    "goodbye": (
        "85a174a7676f6f64627965a673656e646572a26434a87265636569766572a27078a7647261696e6564c3a8666f725f676f6f64c3"
    ),
    "role_change": (
        "85a174ab726f6c655f6368616e6765a673656e646572a26434a87265636569766572a27078a4726f6c65a770726566696c6ca864726169"
        "6e696e67c3"
    ),
    "submit": (
        "de001ba174a67375626d6974a673656e646572a27078a87265636569766572a26434aa726571756573745f6964a172a76174"
        "74656d707401a670726f6d7074930005ce0003ffffa873616d706c696e6782aa6d61785f746f6b656e7308a47365656403a5"
        "7068617365a66465636f6465ab7472616e736665725f6964a3722e31a470656572a27033ad706565725f656e64706f696e74"
        "ac6970633a2f2f2f72756e2f70aa63616368655f73616c74a5616c696365a964656c69766572656493920007909109a76368"
        "6f69636573920002af7472616e736665725f736563726574a26162a87072696f72697479fda8646561646c696e65cb3ff800"
        "0000000000a5677261706882a372756ea172a46e6f6465a77468696e6b6572a66672616d65739292070090ab747261636570"
        "6172656e74d93730302d34626639326633353737623334646136613363653932396430653065343733362d30306630363761"
        "6130626139303262372d3031a663616c6c6572b030313233343536373839616263646566a6776569676874cb400000000000"
        "0000ab706565725f626c6f636b73920300a56c6561736585a26964a87072656669782d31a56f776e6572a3616461a7736563"
        "6f6e64733ca6746f6b656e7310a46d757374c3a761646170746572d940356135613561356135613561356135613561356135"
        "61356135613561356135613561356135613561356135613561356135613561356135613561356135613561b1616461707465"
        "725f6469726563746f7279a22f61ad616461707465725f737461727405"
    ),
    "cancel": (
        "85a174a663616e63656ca673656e646572a27078a87265636569766572a26434aa726571756573745f6964a172a7617474656d707401"
    ),
    "tokens": (
        "de001aa174a6746f6b656e73a673656e646572a26434a87265636569766572a27078aa726571756573745f6964a172a7617474656d7074"
        "01a5696e64657804a36964739100a663686f69636502ad66696e6973685f726561736f6ea473746f70aa73746f705f6d61746368a23c3e"
        "b067656e6572617465645f746f6b656e7304ad70726f6d70745f746f6b656e7303ad6361636865645f746f6b656e7302a86c6f6770726f"
        "627391929300cbbfd0000000000000019307cbbff800000000000002af70726f6d70745f6c6f6770726f62739290919305cbc000000000"
        "00000003ad71756575655f7365636f6e6473cb3fd0000000000000af636f6d70757465645f746f6b656e7301ac64726166745f746f6b65"
        "6e7304b561636365707465645f64726166745f746f6b656e7300b366697273745f6361636865645f746f6b656e7300ac70756c6c65645f"
        "627974657300ae70756c6c65645f7365636f6e6473cb3fe0000000000000aa70756c6c5f6572726f72ac6e6f74207468652073616d65a6"
        "6672616d657391920700ab6b6570745f626c6f636b73920300aa746f705f6c6f67697473c408070000000000803f"
    ),
    "step": (
        "86a174a473746570a673656e646572a26434a87265636569766572a27078a8726571756573747392a27231a27232a4726f777392960100"
        "0703020097000209414005ceffffffffaa746f705f6c6f6769747392c400c408070000000000803f"
    ),
    "progress": (
        "87a174a870726f6772657373a673656e646572a27033a87265636569766572a27078aa726571756573745f6964a172a7617474656d7074"
        "01a8636f6d7075746564cd0200ad6361636865645f746f6b656e7310"
    ),
    "failed": (
        "89a174a66661696c6564a673656e646572a26434a87265636569766572a27078aa726571756573745f6964a172a7617474656d707401a6"
        "726561736f6ea76e6f20726f6f6da6737461747573cd0190a56d6f766564c3a46c617465c3"
    ),
    "greet": (
        "8ca174a56772656574a673656e646572a26434a87265636569766572a27033a6736368656d6101a46e616d65a86465636f64653a30b16d"
        "6f64656c5f66696e6765727072696e74a26d66ae6b765f66696e6765727072696e74a26b66a56474797065a7666c6f61743332aa626c6f"
        "636b5f73697a6510a76b65726e656c73ad617678322d3061316232633364ae6b765f63616368655f6474797065a4696e7438a572616e6b"
        "7302"
    ),
    "greeting": (
        "86a174a86772656574696e67a673656e646572a27033a87265636569766572a26434a4706f6f6c82a46b696e64a373686da3706964cd12"
        "68a6726561736f6ea66f72206e6f74a572616e6b7302"
    ),
    "begin": (
        "8aa174a5626567696ea673656e646572a26434a87265636569766572a27033ab7472616e736665725f6964a3722e31aa72657175657374"
        "5f6964a172a7617474656d707401a46861766502a572616e6b7302a6737461676564c2ad70726f6d70745f646967657374a23562"
    ),
    "chunk_ready": (
        "89a174ab6368756e6b5f7265616479a673656e646572a27033a87265636569766572a26434ab7472616e736665725f6964a3722e31a565"
        "706f636806a4736c6f7401a5666972737402a9626c6f636b5f696473920900a76469676573747392cfffffffffffffffff01"
    ),
    "handoff": (
        "de0017a174a768616e646f6666a673656e646572a27033a87265636569766572a26434ab7472616e736665725f6964a3722e31a565706f"
        "636806a4736c6f7401a5666972737404a9626c6f636b5f6964739103a764696765737473914da8636f6d707574656441ac66697273745f"
        "746f6b656e7393000709ad70726f6d70745f746f6b656e7341ad6361636865645f746f6b656e7340ae6b765f66696e6765727072696e74"
        "a26b66af70726566696c6c5f7365636f6e6473cb3fe0000000000000a763686f69636573920002a86c6f6770726f627391929300cbbfd0"
        "000000000000019307cbbff800000000000002ac64726166745f746f6b656e7393920007909109a66672616d657391920700aa6e657874"
        "5f696e64657809ac68696464656e5f7374617465c4080000803f000000c0ad68696464656e5f646967657374d920663736363030643131"
        "6338373239356530643061336631343664666466663036aa746f705f6c6f6769747391c408070000000000803f"
    ),
    "withdrawn": (
        "86a174a977697468647261776ea673656e646572a27033a87265636569766572a26434ab7472616e736665725f6964a3722e31a866696e"
        "6973686564c3a6726561736f6ea866696e6973686564"
    ),
    "renew": (
        "85a174a572656e6577a673656e646572a26434a87265636569766572a27033ab7472616e736665725f6964a3722e31a565706f636806"
    ),
    "fetched": (
        "85a174a766657463686564a673656e646572a26434a87265636569766572a27033ab7472616e736665725f6964a3722e31a565706f6368"
        "06"
    ),
    "abandon": (
        "85a174a76162616e646f6ea673656e646572a26434a87265636569766572a27033ab7472616e736665725f6964a3722e31a6726561736f"
        "6ea963616e63656c6c6564"
    ),
    "embed": (
        "8aa174a5656d626564a673656e646572a27078a87265636569766572a26530aa726571756573745f6964a172a7617474656d707401a670"
        "726f6d7074930005cd7739aa64696d656e73696f6e73cc80a87072696f72697479fda8646561646c696e65cb3ff8000000000000a57479"
        "70657393000001"
    ),
    "embedding": (
        "89a174a9656d62656464696e67a673656e646572a26530a87265636569766572a27078aa726571756573745f6964a172a7617474656d70"
        "7401a6766563746f72c4080000803f00000000ad70726f6d70745f746f6b656e7303af636f6d70757465645f746f6b656e7303ad717565"
        "75655f7365636f6e6473cb3fd0000000000000"
    ),
    **RANK_RECORDED,
    **GRAPH_RECORDED,
    "prefix_delta": (
        "86a174ac7072656669785f64656c7461a673656e646572a26434a87265636569766572a27078a66e756d62657207a56164646564c41000"
        "0102030405060708090a0b0c0d0e0fa772656d6f766564c408ffffffffffffffff"
    ),
    "prefix_request": "83a174ae7072656669785f72657175657374a673656e646572a27078a87265636569766572a26434",
    **TIMES_RECORDED,
    **LEASE_RECORDED,
    **ADAPTER_RECORDED,
}
