# SPDX-License-Identifier: Apache-2.0
"""Routes for health, metrics, topology and the served models."""

import re
from collections.abc import Sequence
from typing import Any

from sanic import HTTPResponse, Request
from sanic.response import json as json_response
from sanic.response import raw

from pontil.http.access.access import sees_all
from pontil.http.intake.served_model import ServedModel, no_model
from pontil.http.openai.embeddings.served_embedding import ServedEmbedding
from pontil.runtime.errors import Unavailable
from pontil.runtime.proxy.proxy import Proxy


class ModelList:
    """Handlers over the models: those that generate, and those that embed and score texts if there are some."""

    def __init__(self, models: Sequence[ServedModel], *texts: ServedEmbedding | None) -> None:
        self.generating = models
        self.served: list[ServedModel | ServedEmbedding] = [*models, *(one for one in texts if one is not None)]

    async def models(self, request: Request) -> HTTPResponse:
        return json_response({"object": "list", "data": [model.described for model in self.served] + self.adapters})

    async def one_model(self, request: Request, name: str) -> HTTPResponse:
        for model in self.served:
            if model.name == name:
                return json_response(model.described)
        adapters = {adapter["id"]: adapter for adapter in self.adapters}
        if name in adapters:
            return json_response(adapters[name])
        raise no_model(name, [*(model.name for model in self.served), *adapters])

    @property
    def adapters(self) -> list[dict[str, Any]]:
        return [adapter for model in self.generating for adapter in model.described_adapters]


METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text"
OPENMETRICS_TYPE = f"{OPENMETRICS}; version=1.0.0; charset=utf-8"


class StatusRoutes:
    """Handlers over one proxy."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy

    async def health(self, request: Request) -> HTTPResponse:
        """Report that the process is alive, whether or not it can serve."""
        return json_response({"status": "alive"})

    async def ready(self, request: Request) -> HTTPResponse:
        """Return 200 only if every kind of request that the model takes can be served now (D21). A fault of the usage
        log is included, but does not make the server unready."""
        if objection := self.proxy.readiness.objection:
            raise Unavailable(objection)
        complaint = self.proxy.books.complaint
        return json_response({"status": "ready"} | ({"usage_log": complaint} if complaint else {}))

    async def metrics(self, request: Request) -> HTTPResponse:
        """Return the metrics: of several proxies all, of one alone with exemplars for a client that accepts OpenMetrics
        and may know of all requests."""
        if self.proxy.fleet.pages is not None:
            return raw(await self.proxy.fleet.pages.whole(), content_type=METRICS_TYPE)
        if sees_all(request) and takes_openmetrics(",".join(request.headers.getall("accept", []))):
            return raw(self.proxy.metrics.render_openmetrics(), content_type=OPENMETRICS_TYPE)
        return raw(self.proxy.metrics.render(), content_type=METRICS_TYPE)

    async def ledger(self, request: Request) -> HTTPResponse:
        return json_response(self.proxy.books.sums())

    async def version(self, request: Request) -> HTTPResponse:
        return json_response({"version": self.proxy.config.version})

    async def topology(self, request: Request) -> HTTPResponse:
        """Return the processes, the age of the supervisor's table in seconds (about one while a supervisor runs), the
        result of each route's last self-test, the reuse of prompts and the leases by key, and the requests by class,
        and by key and class; also that this launch allows chaos, if it does."""
        proxy = self.proxy
        topology_fields: dict[str, Any] = {"processes": proxy.topology(), "routes": proxy.self_test.shown}
        topology_fields["prompts"] = proxy.books.reuse.rows()
        topology_fields["classes"] = proxy.metrics.classes.open_rows(proxy.requests.values())
        topology_fields["keys"] = proxy.metrics.classes.key_rows(proxy.requests.values())
        if leases := proxy.leases.rows():
            topology_fields["leases"] = leases
        if (age := self.proxy.changes.table_age) is not None:
            topology_fields["age_seconds"] = round(age, 1)
        if self.proxy.config.allow_chaos:
            topology_fields["chaos"] = True
        return json_response(topology_fields)


def takes_openmetrics(accept: str) -> bool:
    """Return whether an Accept header lists OpenMetrics with a weight above zero."""
    for media_range in accept.split(","):
        kind, *parameters = (part.strip().lower() for part in media_range.split(";"))
        if kind == OPENMETRICS:
            return not any(re.fullmatch(r"q=0(\.0*)?", part) for part in parameters)
    return False
