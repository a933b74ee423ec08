# SPDX-License-Identifier: Apache-2.0
"""The tellings about kept prompts that a proxy believes, of all that clients can send."""

import re
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pontil.runtime.proxy.fleet.registry import Registry
from pontil.runtime.proxy.requests.generation import Generation
from pontil.runtime.proxy.requests.remote_kv import MOST_TOLD, KeepPrompt, KeptPrompt, KVTransfers, readable
from pontil.runtime.proxy.requests.request import Request
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.wire.links.keys import Keys

KEY = Keys.of("5b" * 32).kept
NAMES = ("remote_engine_id", "remote_host", "remote_port", "remote_request_id", "signature", "remote_block_ids")
VALUES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.just("x" * 5000)
    | st.sampled_from(["127.0.0.1", "::1", "127.8.8.8", "10.0.0.1", "::ffff:127.0.0.1", "localhost", "e7", "0" * 64])
    | st.integers(1, 65535) | st.lists(st.integers(), max_size=3)
    | st.lists(st.integers(0, 9), max_size=3) | st.dictionaries(st.text(max_size=2), st.none())
)  # fmt: skip
TOLD = st.dictionaries(st.sampled_from(NAMES), VALUES)
NEAR = re.compile(r"tcp://(127\.\d+\.\d+\.\d+|\[[0-9a-fA-F:.]+\]):\d{1,5}")


@given(TOLD)
def test_without_keys_nothing_leads_off_this_machine(told: dict[str, Any]) -> None:
    try:
        kept = KVTransfers(Registry(1.0), None, True).claim(readable(told))
    except ValueError as error:
        assert len(str(error)) < 200
    else:
        assert NEAR.fullmatch(kept.endpoint) and kept.secret is None
        assert kept.engine == told["remote_engine_id"] and kept.transfer_id == told["remote_request_id"]
        assert all(0 <= block < 1 << 31 for block in kept.blocks)


@given(TOLD)
def test_where_no_router_was_expected_nothing_leads_out_of_the_system(told: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        KVTransfers(Registry(1.0), None, False).claim(readable(told))


@given(TOLD)
def test_with_keys_nothing_is_believed_that_was_not_signed(told: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        KVTransfers(Registry(1.0), KEY, True).claim(readable(told))


class Untouched(list[Any]):
    """A list whose items nobody may look at one by one."""

    def __iter__(self) -> NoReturn:
        raise AssertionError("it costs as much as it is long")


def test_what_is_too_long_is_dropped_unread() -> None:
    told = {
        "remote_engine_id": "e",
        "remote_host": "h" * 600,
        "remote_port": 7,
        "remote_request_id": ["r"],
        "more": "x",
    }
    for many in (Untouched([0] * (MOST_TOLD + 1)), [Untouched([0] * (MOST_TOLD + 1))], Untouched([[0]] * 2)):
        expected = {"remote_engine_id": "e", "remote_port": 7, "remote_block_ids": None}
        assert readable(told | {"remote_block_ids": many}) == expected


def test_a_claim_costs_nothing_for_each_block() -> None:
    place = {"remote_engine_id": "e", "remote_host": "127.0.0.1", "remote_port": 7, "remote_request_id": "r.0"}
    blocks = Untouched([0] * MOST_TOLD)
    assert KVTransfers(Registry(1.0), None, True).claim(place | {"remote_block_ids": blocks}).blocks is blocks


def test_what_was_signed_is_believed_as_it_was_signed() -> None:
    transfers = KVTransfers(Registry(1.0), KEY, True)
    place = {"remote_engine_id": "e", "remote_host": "10.0.0.1", "remote_port": 7, "remote_request_id": "r.0"}
    told = place | {"signature": transfers.signature(place), "remote_block_ids": [3, 1]}
    assert transfers.claim(told).blocks == [3, 1]
    assert transfers.claim(told).endpoint == "tcp://10.0.0.1:7"
    assert transfers.claim(told | {"tp_size": 4}).secret == transfers.secret("r.0") != transfers.secret("r.1")
    others = {"remote_engine_id": "f", "remote_host": "10.0.0.2", "remote_port": 8, "remote_request_id": "r.1"}
    for name, value in others.items():
        with pytest.raises(ValueError, match="not signed"):
            transfers.claim(told | {name: value})
    with pytest.raises(ValueError, match="not signed"):
        KVTransfers(Registry(1.0), Keys.of("5c" * 32).kept, True).claim(told)


def test_only_the_first_attempt_claims_and_no_answer_that_goes_on_is_kept(tokenizer: Tokenizer) -> None:
    request = Request.start("r", Generation([5, 6], SamplingParams(max_tokens=4, seed=1)), tokenizer, 0.0)
    kept = KeptPrompt("e", "tcp://127.0.0.1:7", "other.0", [3])
    assert kept.claims(request)
    request.attempts.number = 0
    assert kept.claims(request) and kept.submitted(request)["phase"] == "claim"
    request.attempts.number = 1
    assert not kept.claims(request) and kept.submitted(request) == {}
    keep = KeepPrompt(KVTransfers(Registry(1.0), None, True))
    assert keep.submitted(request) == {"phase": "hold", "transfer_id": "r.1", "transfer_secret": None}
    request.answers[0].add([70], None, None)
    assert keep.submitted(request) == {} and keep.told(request) is None
