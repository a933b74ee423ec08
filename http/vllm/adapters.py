# SPDX-License-Identifier: Apache-2.0
"""The routes by which an operator loads and unloads adapters while the server runs, as vLLM has them."""

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from sanic import HTTPResponse, Request
from sanic.response import text

from pontil.http.access.endpoint import Endpoint, RouteAccess
from pontil.http.intake.body import BODY_ERRORS, BodyReader, understood
from pontil.http.intake.served_model import ServedModel, models_by_name
from pontil.http.schema.parameter import Parameter, ParameterTable
from pontil.http.schema.parameter_types import FlagType, TextType
from pontil.http.schema.reader import Fields, IgnoredFields
from pontil.http.stream import reply_schema as reply
from pontil.runtime.config.proxy_config import ProxyConfig
from pontil.runtime.config.readers import ADAPTER_NAME
from pontil.runtime.errors import ModelError, RequestError, Unavailable
from pontil.runtime.probe.adapters import examine_adapter
from pontil.runtime.proxy.fleet.fleet_adapters import FleetAdapters

MOST_PATH = 4096
NAME = Parameter("lora_name", TextType(1, 128), "the name by which clients ask for it", required=True)
LOAD = (
    NAME,
    Parameter("lora_path", TextType(1, MOST_PATH), "its directory, on the server", required=True),
    Parameter("load_inplace", FlagType(), "whether it may take the place of one of that name", False),
)
UNLOAD = (NAME,)
LOAD_TABLE, UNLOAD_TABLE = ParameterTable(LOAD), ParameterTable(UNLOAD)
# Seconds for which the answer waits for the workers, and from one look to the next.
LOADED_WITHIN, LOOK = 60.0, 0.02


def read_change(table: ParameterTable, data: Mapping[str, Any], ignored: IgnoredFields | None) -> dict[str, Any]:
    """Parse a body. Raises RequestError."""
    fields = Fields(data, ignored=ignored)
    values = table.read(fields)
    if not ADAPTER_NAME.fullmatch(values["lora_name"]):
        raise fields.wrong("lora_name", "must be letters, digits and ._:/-, at most 128")
    return values


class AdapterRoutes:
    """Handlers over the adapters of one proxy. What was begun goes on if the client leaves."""

    def __init__(self, model: ServedModel, bodies: BodyReader) -> None:
        self.model, self.bodies = model, bodies

    @property
    def adapters(self) -> FleetAdapters:
        return self.model.proxy.adapters

    @property
    def config(self) -> ProxyConfig:
        return self.model.proxy.config

    def endpoints(self) -> tuple[Endpoint, ...]:
        return (
            Endpoint("POST", "/v1/load_lora_adapter", self.load_adapter, "Load an adapter in all workers.", reply.TEXT,
                     LOAD, errors=(*BODY_ERRORS, 403, 409, 503), content_type="text/plain", door=RouteAccess.ADMIN),
            Endpoint("POST", "/v1/unload_lora_adapter", self.unload_adapter, "Unload an adapter.", reply.TEXT,
                     UNLOAD, errors=(*BODY_ERRORS, 503), content_type="text/plain", door=RouteAccess.ADMIN),
        )  # fmt: skip

    async def load_adapter(self, request: Request) -> HTTPResponse:
        """Load an adapter, and answer once all workers have it, or one cannot."""
        told = await self.read(request, LOAD_TABLE)
        name, adapters = told["lora_name"], self.adapters
        if not self.config.adapter_directory:
            raise RequestError(
                "the server loads no adapters while it runs: start it with --adapter-directory", status=403
            )
        if name in models_by_name(self.config):
            raise RequestError(f"{name} is a model: give the adapter another name", param="lora_name")
        adapters.check_workers()
        self.check_new(name, in_place=told["load_inplace"])
        examine = partial(examine_adapter, told["lora_path"], self.config.adapter_directory, self.config.model_path)
        try:
            found = await asyncio.to_thread(examine)
        except ModelError as error:
            raise RequestError(str(error), param="lora_path") from None
        self.check_new(name, in_place=told["load_inplace"])
        change, digest = adapters.load(name, *found), found.digest
        await self.until(
            name,
            lambda: adapters.stands(name, change),
            lambda: adapters.is_served(name, digest) or self.has_failed(name, digest),
        )
        if (reason := adapters.failure(name, digest)) is not None:
            adapters.retract(name, change)
            raise RequestError(reason, param="lora_path")
        if not adapters.is_served(name, digest):
            raise Unavailable(f"not all workers have loaded it within {LOADED_WITHIN:.0f} s: they go on")
        return text(f"Success: LoRA adapter '{name}' added successfully.")

    async def unload_adapter(self, request: Request) -> HTTPResponse:
        """Unload an adapter, and answer once no worker takes new requests for it."""
        name = (await self.read(request, UNLOAD_TABLE))["lora_name"]
        adapters = self.adapters
        if adapters.book.digest_of(name, adapters.before.get(name)) is None:
            raise RequestError(f"there is no adapter {name!r:.140}", status=404, param="lora_name", code="not_found")
        adapters.check_workers()
        change = adapters.unload(name)
        await self.until(name, lambda: adapters.stands(name, change), lambda: adapters.is_gone(name, change))
        if not adapters.is_gone(name, change):
            raise Unavailable(f"not all workers have unloaded it within {LOADED_WITHIN:.0f} s: they go on")
        return text(f"Success: LoRA adapter '{name}' removed successfully.")

    async def read(self, request: Request, table: ParameterTable) -> dict[str, Any]:
        values = await self.bodies.read(request, partial(read_change, table, ignored=self.bodies.ignored(request)))
        understood(request)
        return values

    def check_new(self, name: str, *, in_place: bool) -> None:
        """Raise RequestError for a name that stands for an adapter, which only one `in_place` may replace."""
        if not in_place and self.adapters.book.digest_of(name, self.adapters.before.get(name)) is not None:
            says = f"there is an adapter {name} already: unload it first, or give load_inplace"
            raise RequestError(says, param="lora_name", code="adapter_exists")

    def has_failed(self, name: str, digest: str) -> bool:
        return self.adapters.failure(name, digest) is not None

    async def until(self, name: str, stands: Callable[[], bool], is_done: Callable[[], bool]) -> None:
        """Wait for the workers, for a time. Raises Unavailable once the change does not stand: another one counts."""
        end = time.monotonic() + LOADED_WITHIN
        while stands() and not is_done() and time.monotonic() < end:
            await asyncio.sleep(LOOK)
        if not stands():
            raise Unavailable(f"another change of {name} was made meanwhile, and counts: see what it is now, try again")
