# SPDX-License-Identifier: Apache-2.0
"""The parameter by which other routers move a prompt's KV between two workers, as vLLM's `kv_transfer_params`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pontil.http.schema.parameter import Parameter, Schema
from pontil.http.schema.parameter_types import ShapedType
from pontil.http.schema.reader import Fields
from pontil.runtime.proxy.requests.remote_kv import readable

NAME = "kv_transfer_params"


@dataclass(frozen=True, slots=True)
class KVTransferFields:
    """The wish that the prompt is kept for another worker (`keeps`), or is had from one (`claims`) that `told` these
    fields, which nobody has believed yet."""

    keeps: bool
    claims: bool
    told: Mapping[str, Any]


def read_kv_transfer(fields: Fields, name: str) -> KVTransferFields | None:
    inner = fields.required_object(name)
    keeps, claims = inner.boolean("do_remote_decode", False), inner.boolean("do_remote_prefill", False)
    if keeps and claims:
        raise fields.wrong(name, "asks for both do_remote_decode and do_remote_prefill: a worker does one of them")
    if not keeps and not claims:
        fields.without_effect(name)
        return None
    return KVTransferFields(keeps, claims, readable(inner.data) if claims else {})


def kv_transfer_schema() -> Schema:
    flags = {name: {"type": ["boolean", "null"]} for name in ("do_remote_decode", "do_remote_prefill")}
    return {"title": "an object", "type": "object", "properties": flags}


KV_TRANSFER = Parameter(
    NAME,
    ShapedType(read_kv_transfer, kv_transfer_schema()),
    "sent by a router that drives workers: keep the prompt's KV, or take what another worker kept",
)
