# SPDX-License-Identifier: Apache-2.0
"""The proxy process: the sanic app over the router, and its lifecycle from bind to drain."""

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Collection, Iterable, Sequence, Set
from email.utils import formatdate
from functools import partial
from pathlib import Path
from typing import Any

from sanic import HTTPResponse, Request, Sanic
from sanic.config import Config
from sanic.response import BaseHTTPResponse, empty

from pontil.http.access.access import Access, AllowedHosts, CrossOrigin
from pontil.http.access.endpoint import Endpoint, RouteAccess
from pontil.http.access.keyring import Keyring
from pontil.http.anthropic.error_shape import REQUEST_ID, is_of_messages
from pontil.http.intake.body import MOST_BODY
from pontil.http.intake.caller_turns import CALLER
from pontil.http.intake.guards import Intake
from pontil.http.openai.responses.conversations import Conversations
from pontil.http.routes.endpoint_table import endpoints
from pontil.http.routes.page import live_page
from pontil.http.server.connection_limit import (
    ConnectionLimit,
    LogInterval,
    connections_within,
    descriptor_limit,
    raise_descriptor_limit,
)
from pontil.http.server.error_handler import OpenAIErrors
from pontil.http.server.raw_head import MAX_HEAD_BYTES
from pontil.http.server.request_id import CURRENT, HEADER, WithRequestId, request_id
from pontil.http.server.server_spans import ServerSpans
from pontil.http.server.timed_protocol import RECEIVE_SECONDS, TimedProtocol
from pontil.http.stream.answer_checker import AnswerChecker
from pontil.runtime.command_pipe import CommandPipe
from pontil.runtime.config.proxy_config import ProxyConfig
from pontil.runtime.errors import PontilError
from pontil.runtime.foundation.garbage import leave_to_requests
from pontil.runtime.loaders.config import is_encoder
from pontil.runtime.proxy.proxy import Proxy
from pontil.runtime.proxy.requests.ticket import Ticket
from pontil.runtime.reporting import Reporter
from pontil.runtime.timeline.received import RECEIVED, ReceivedRequest
from pontil.runtime.tokenizer.pair_encoder import PairEncoder, pair_encoder
from pontil.runtime.tokenizer.tokenizer import Tokenizer, load_tokenizer


class HttpDate:
    """The current date as HTTP writes it (RFC 9110, 5.6.7), made once a second."""

    def __init__(self, clock: Callable[[], float] = lambda: time.time()) -> None:
        self.clock = clock
        self.second, self.text = -1, ""

    @property
    def now(self) -> str:
        second = int(self.clock())
        if second != self.second:
            self.second, self.text = second, formatdate(second, usegmt=True)
        return self.text


BACKLOG = 1024
# The header with the id of a stream that can be continued.
STREAM = "x-pontil-stream"
# A body up to this many times too large is read and discarded, so that the client is still connected to read the 413.
READ_ANYWAY = 4
# Timeout of a response that is not streamed; a request whose worker is silent fails much sooner.
RESPONSE_SECONDS = 3600
# Longer than the idle timeout of load balancers, so that they close a connection first.
IDLE_SECONDS = 75
GRACE_SECONDS = 5.0
# Seconds in which a request may still come on a connection that is open when the server leaves.
LINGER_SECONDS = 1.0
# Seconds that a proxy which shares its port waits for the first worker, and between two looks.
WORKERS_WITHIN = 5.0
LOOK = 0.02
SANIC_LOGGERS = ("sanic.root", "sanic.server", "sanic.access")
# Asked for on every path: OPTIONS by browsers before a request, HEAD where there is no GET.
METHODS = ("HEAD", "OPTIONS")


def build_app(proxy: Proxy, embedding: Tokenizer | None = None, pairs: PairEncoder | None = None) -> Sanic[Any, Any]:
    """Build the app over a bound proxy; the caller starts and closes the proxy itself. `embedding` and `pairs` as in
    `endpoints`."""
    app: Sanic[Any, Any] = Sanic(
        f"pontil-{proxy.incarnation}",
        config=Config({}, env_prefix=None),
        error_handler=OpenAIErrors(),
        configure_logging=False,
    )
    app.config.update(
        {
            "ACCESS_LOG": False,
            "AUTO_EXTEND": False,
            "MOTD": False,
            "REQUEST_MAX_SIZE": READ_ANYWAY * (proxy.config.max_body_size or MOST_BODY),
            "REQUEST_MAX_HEADER_SIZE": MAX_HEAD_BYTES,
            "REQUEST_TIMEOUT": RECEIVE_SECONDS,
            "KEEP_ALIVE_TIMEOUT": IDLE_SECONDS,
            "RESPONSE_TIMEOUT": RESPONSE_SECONDS,
            "GRACEFUL_SHUTDOWN_TIMEOUT": GRACE_SECONDS,
        }
    )
    bodies = proxy.config.in_flight_bodies
    intake = Intake(None if bodies is None else Path(bodies), lambda name: app.ctx.access.keyring.knows(name))
    app.register_listener(intake.close, "after_server_stop")
    answers = AnswerChecker()
    app.register_listener(answers.close, "after_server_stop")
    conversations = Conversations.of(proxy.config)
    app.register_listener(conversations.close, "after_server_stop")
    page = app.ctx.page = live_page(proxy)
    app.register_listener(page.close, "before_server_stop")
    served_endpoints = endpoints(proxy, intake, answers, conversations, page, embedding, pairs)
    spans = None if proxy.in_flight.tracer is None else ServerSpans(proxy.in_flight.tracer)
    for endpoint in served_endpoints:
        handler = endpoint.handler if spans is None else spans.over(endpoint)
        # Without ignore_body, Sanic would buffer the whole body before any check; without a format of errors, look for
        # one in the handler's source.
        app.route(endpoint.route, methods=endpoint.methods, ignore_body=True, error_format="json")(handler)
    pages = CrossOrigin(proxy.config.cors_origin)
    add_probes(app, served_endpoints, pages)
    probes = {endpoint.path for endpoint in served_endpoints if endpoint.door is RouteAccess.OPEN}
    app.ctx.connection_limit = ConnectionLimit(connections_within(descriptor_limit()), probes)
    app.ctx.linger = 0.0
    app.ctx.malformed_heads = LogInterval()
    app.ctx.access = access_to(proxy.config, served_endpoints)
    reading = {endpoint.route.removeprefix("/") for endpoint in served_endpoints if endpoint.takes}
    add_middleware(app, app.ctx.access, pages, reading, proxy.clock, spans)
    return app


class Probe:
    """The answer to both methods on one path: an empty one that says which `methods` the path has."""

    def __init__(self, methods: Iterable[str], pages: CrossOrigin) -> None:
        self.methods, self.pages = ", ".join(sorted({*methods, *METHODS})), pages

    async def answer(self, request: Request, **captured: str) -> HTTPResponse:
        asks = request.method == "OPTIONS" and "access-control-request-method" in request.headers
        sharing = self.pages.headers(request.headers, self.methods) if asks else {}
        return empty(headers={"allow": self.methods} | sharing)


def add_probes(app: Sanic[Any, Any], served_endpoints: Collection[Endpoint], pages: CrossOrigin) -> None:
    methods: dict[str, list[str]] = {}
    operators = {
        endpoint.route for endpoint in served_endpoints if endpoint.door in (RouteAccess.ADMIN, RouteAccess.PAGE)
    }
    for endpoint in served_endpoints:
        methods.setdefault(endpoint.route, []).extend(endpoint.methods)
    for number, (route, there) in enumerate(methods.items()):
        probe = Probe(there, CrossOrigin() if route in operators else pages)
        app.add_route(
            probe.answer,
            route,
            methods=set(METHODS) - set(there),
            name=f"probe_{number}",
            ignore_body=True,
            error_format="json",
        )


def access_to(config: ProxyConfig, served_endpoints: Sequence[Endpoint]) -> Access:
    doors = {endpoint.route.removeprefix("/"): endpoint.door for endpoint in served_endpoints}
    keyring = Keyring.of(config.callers, config.admin, config.allowances)
    return Access(keyring, doors, AllowedHosts(config.host, config.allowed_hosts))


def add_middleware(
    app: Sanic[Any, Any],
    access: Access,
    pages: CrossOrigin,
    reading: Set[str],
    now: Callable[[], float],
    spans: ServerSpans | None,
) -> None:
    """Add access checks and the headers of every answer. `reading` are the paths of routes that read bodies
    themselves; bodies sent to other routes are discarded. `now` is the clock of the requests' timelines, `spans`
    names the traces of requests that have one."""

    # Sanic would read the body of another route before its middleware, and so before the check.
    assert all(route.extra.ignore_body for route in app.router.routes), "a route reads bodies before the access check"

    async def admit(request: Request) -> None:
        """Check access before any of the body is read, for all paths and methods, with or without a route."""
        request.ctx.request_id = request_id(request.headers.getone(HEADER, None))
        CURRENT.set(request.ctx.request_id)
        received_request = received_now(request, now)
        RECEIVED.set(received_request)
        caller = access.admit(request)
        request.ctx.ticket = Ticket(
            request.ctx.request_id,
            caller.name,
            caller.allowance,
            caller.allowance.service_class.place(),
            received=received_request,
        )
        CALLER.set(caller.name)
        if request.route is not None and (request.route.path not in reading or request.method in METHODS):
            async for _ in request.stream:  # type: ignore[union-attr]
                pass

    clock = HttpDate()

    async def name(request: Request, response: BaseHTTPResponse) -> None:
        # A request that failed before the first middleware has no id yet.
        response.headers[HEADER] = getattr(request.ctx, "request_id", None) or request_id(None)
        if is_of_messages(request.path):
            response.headers[REQUEST_ID] = response.headers[HEADER]
        response.headers["date"] = clock.now
        if not access.is_operators(request):
            for header, value in pages.headers(request.headers).items():
                response.headers.setdefault(header, value)
        if (stream := getattr(request.ctx, "stream_id", None)) is not None:
            response.headers[STREAM] = stream
        if (ignored_fields := getattr(request.ctx, "ignored", None)) is not None:
            response.headers.update(ignored_fields.headers)
        if spans is not None:
            spans.name(request, response)

    app.register_middleware(admit, "request")
    app.register_middleware(name, "response")


def received_now(request: Request, now: Callable[[], float]) -> ReceivedRequest:
    """Return the beginning of a request's timeline."""
    route = "-" if request.route is None else f"/{request.route.path}"
    return ReceivedRequest(route, now)


class Service:
    """One run of the proxy process: app, listener and commands."""

    def __init__(self, proxy: Proxy, app: Sanic[Any, Any], listener: socket.socket, reporter: Reporter) -> None:
        self.proxy, self.app, self.listener, self.reporter = proxy, app, listener, reporter
        self.drain_deadline: float | None = None
        self.listening = self.reported = self.may_end = False
        self.pipe: CommandPipe | None = None
        app.register_listener(self.before_start, "before_server_start")
        app.register_listener(self.after_start, "after_server_start")
        app.register_listener(self.before_stop, "before_server_stop")
        app.register_listener(self.after_stop, "after_server_stop")

    def run(self, commands_fd: int) -> None:
        """Serve until told to end. Call it in the main thread only."""
        self.pipe = CommandPipe(commands_fd, logging.getLogger("pontil.proxy"))
        self.proxy.changes.ask = self.reporter.asked
        if self.proxy.config.model_memory is not None:
            self.proxy.waking.tell = self.reporter.used
        # Sanic listens anew, with a backlog of its own unless it is told one.
        self.app.run(
            sock=self.listener,
            single_process=True,
            motd=False,
            access_log=False,
            protocol=TimedProtocol,
            backlog=BACKLOG,
        )

    async def before_start(self, app: Any) -> None:
        """Start the proxy. One of several accepts no connection before it can serve, since another one can."""
        self.proxy.start(self.on_tick)
        if self.pipe is not None:
            asyncio.get_running_loop().add_reader(self.pipe.descriptor, self.take_commands, self.pipe)
        deadline = asyncio.get_running_loop().time() + WORKERS_WITHIN
        while self.proxy.config.proxies > 1 and not self.proxy.registry.workers:
            if asyncio.get_running_loop().time() > deadline:
                break
            await asyncio.sleep(LOOK)

    async def after_start(self, app: Any) -> None:
        """Mark as listening. Ready is reported at the next tick, since a signal would be lost while the server
        starts."""
        self.listening = True

    def report_ready(self) -> None:
        self.reported = True
        host, port = self.listener.getsockname()[:2]
        shown_host = f"[{host}]" if ":" in host else host
        self.reporter.ready(url=f"http://{shown_host}:{port}")

    async def before_stop(self, app: Any) -> None:
        """Abort running streams while their connections are still open, unless they may end."""
        if not self.may_end:
            self.end_requests()

    async def after_stop(self, app: Any) -> None:
        if self.pipe is not None:
            asyncio.get_running_loop().remove_reader(self.pipe.descriptor)
        # No connection is left: of a stream whose reader has left there was none to wait for.
        self.end_requests()
        await self.proxy.close()

    def take_commands(self, pipe: CommandPipe) -> None:
        """Carry out the commands that have arrived; end if the supervisor is gone."""
        for command in pipe.take():
            self.obey(command)
        if pipe.closed:
            asyncio.get_running_loop().remove_reader(pipe.descriptor)
            self.app.stop()

    def obey(self, command: dict[str, Any]) -> None:
        if command.get("kind") == "table":
            self.proxy.take_table(command["rows"])
        elif command.get("kind") == "log_level":
            logging.getLogger().setLevel(command["level"].upper())
        elif command.get("kind") == "client_keys":
            self.app.ctx.access.keyring = Keyring.of(
                command["callers"], command["admin"], command.get("allowances", ())
            )
        elif command.get("kind") == "change":
            self.proxy.changes.hear(command)
        elif command.get("kind") == "self_test":
            report_test = partial(self.reporter.tested, int(command["number"]))
            self.proxy.self_test.begin(report_test, self.reporter.progress)
        elif command.get("kind") == "drain":
            timeout = float(command.get("timeout", GRACE_SECONDS))
            self.app.ctx.linger = LINGER_SECONDS
            self.proxy.books.has_successor = bool(command.get("hand_over"))
            if command.get("hand_over") and not command.get("alone"):
                self.leave(timeout)
                return
            self.proxy.drain()
            self.drain_deadline = asyncio.get_running_loop().time() + timeout

    def leave(self, timeout: float) -> None:
        """Take no more connections, since another proxy does, and end once those that are open have no request."""
        self.may_end = True
        self.app.config.GRACEFUL_SHUTDOWN_TIMEOUT = timeout + GRACE_SECONDS
        asyncio.get_running_loop().call_later(timeout, self.end_requests)
        self.app.stop()

    def end_requests(self) -> None:
        """Leave the streams that can be continued to a successor, where there is one, and end the rest."""
        if self.proxy.books.has_successor:
            self.proxy.streams.hand_over_all()
        self.proxy.drain()
        self.proxy.abandon()

    def on_tick(self, number: int) -> None:
        """Report progress of the event loop. After a drain, stop once the proxy is idle or the deadline has passed."""
        self.reporter.stepped(number, working=True)
        if self.listening and not self.reported:
            self.report_ready()
        if self.drain_deadline is not None:
            late = asyncio.get_running_loop().time() > self.drain_deadline
            if self.proxy.idle or late:
                self.drain_deadline = None
                self.app.stop()


def run_proxy(config: ProxyConfig, reporter: Reporter, commands_fd: int) -> None:
    """Run the proxy process. Returns after a drain or SIGTERM. Raises PontilError when it cannot start."""
    for name in SANIC_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    for handler in logging.getLogger().handlers:
        handler.addFilter(WithRequestId())
    raise_descriptor_limit()
    reporter.progress("reading the tokenizer")
    further = {model.name: load_tokenizer(model.path, config.cache_path) for model in config.further_models}
    proxy = Proxy(config, load_tokenizer(config.model_path, config.cache_path), further=further)
    path = config.embedding_model
    embedding = None if path is None else load_tokenizer(Path(path), config.cache_path)
    pairs = None if config.reranking_model is None else load_pairs(Path(config.reranking_model), config.cache_path)
    listener = listening(config)
    proxy.bind()
    leave_to_requests()
    Service(proxy, build_app(proxy, embedding, pairs), listener, reporter).run(commands_fd)


def load_pairs(path: Path, cache: Path | None) -> PairEncoder:
    """Load the tokenizer of a model that scores pairs. Raises ModelError."""
    return pair_encoder(load_tokenizer(path, cache), judges=not is_encoder(path))


def listening(config: ProxyConfig) -> socket.socket:
    """Return the launch's socket, which all of its proxies share, and have it listen; it may do so already. No process
    that is started from here gets it. Raises PontilError where another program listens at the address."""
    listener = socket.socket(fileno=config.listeners[0])
    listener.set_inheritable(False)
    try:
        listener.listen(BACKLOG)
    except OSError as error:
        where = f"{config.host}:{config.port}"
        raise PontilError(f"cannot listen on {where}: {error.strerror}; choose another --host or --port") from None
    return listener
