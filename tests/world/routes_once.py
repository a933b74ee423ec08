# SPDX-License-Identifier: Apache-2.0
"""Proxies of one process have apps that are alike: what sanic finds out about the routes of the first one is kept for
the others, which is most of the time in which an app is built."""

import inspect
from functools import cache
from types import CodeType, SimpleNamespace
from typing import Any

from sanic import router as app_router
from sanic.mixins import routes
from sanic_routing import route, router
from sanic_routing.utils import parts_to_path, path_to_parts


def compile_routes_once() -> None:
    """Have sanic look at signatures of handlers, take paths apart and join them, and compile the source of a router,
    for the first app of this process only."""
    known = dict[CodeType, inspect.Signature]()

    def signed(handler: Any) -> inspect.Signature:
        code = inspect.unwrap(getattr(handler, "__func__", handler)).__code__
        if code not in known:
            known[code] = inspect.signature(handler)
        return known[code]

    for module in (routes, app_router):
        setattr(module, inspect.signature.__name__, signed)
    untyped: Any = router
    untyped.ast = SimpleNamespace(parse=str, unparse=str, fix_missing_locations=str)
    untyped.compile = cache(compile)
    parts, paths = cache(path_to_parts), cache(parts_to_path)
    for untyped in (router, route):
        untyped.path_to_parts = parts
        untyped.parts_to_path = lambda these, delimiter="/": paths(tuple(these), delimiter)
    generalized: Any = route.Route.segments
    untyped.Route.segments = property(lambda one: generalized.fget(one) if one._params else one.parts)
