# SPDX-License-Identifier: Apache-2.0
from dataclasses import fields

import msgpack
import pytest

from pontil.runtime.errors import MalformedFrame
from pontil.runtime.sampling_params import ITEMS, PLAIN, SamplingParams

PARAMS = SamplingParams(5, 2**63, 0.5, 0.9, 40, ("a", "b"), (0, 7), True, False, True)


def test_every_option_survives_the_wire() -> None:  # D13
    assert all(getattr(PARAMS, field.name) != field.default for field in fields(PARAMS))
    assert SamplingParams.from_wire(msgpack.unpackb(msgpack.packb(PARAMS.to_wire()))) == PARAMS


def test_every_annotation_has_a_check() -> None:
    assert {field.type for field in fields(SamplingParams)} == set(PLAIN) | set(ITEMS)


@pytest.mark.parametrize("change", [{"max_tokens": "5"}, {"stop": [1]}, {"seed": True}, {"stop_token_ids": 3}])
def test_a_wrong_type_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(MalformedFrame, match=next(iter(change))):
        SamplingParams.from_wire(PARAMS.to_wire() | change)


def test_a_missing_field_is_refused_and_an_unknown_one_ignored() -> None:
    with pytest.raises(MalformedFrame, match="max_tokens"):
        SamplingParams.from_wire({"seed": 1})
    assert SamplingParams.from_wire({"seed": 1, "max_tokens": 2, "later": []}) == SamplingParams(2, 1)
