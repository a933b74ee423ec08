# SPDX-License-Identifier: Apache-2.0
"""A proxy's process: the real proxy, app and service, with sanic's protocol over the world's connections."""

import asyncio
import json
import os
from collections.abc import Callable
from typing import Any, cast

from hash_vectors import pairs_of
from jinja2 import Environment
from sanic.application.constants import ServerStage
from sanic.application.state import ApplicationServerInfo
from sanic.touchup.service import TouchUp
from virtual_time import HERE, SeededWorld

from pontil.http.access.in_flight_bodies import InFlightBodies
from pontil.http.server.service import Service, build_app
from pontil.http.server.timed_protocol import TimedProtocol
from pontil.runtime.accounting.usage_log import UsageLog
from pontil.runtime.accounting.usage_tables import RequestRow
from pontil.runtime.config.proxy_config import ProxyConfig
from pontil.runtime.errors import PontilError
from pontil.runtime.foundation.line_pipe import LinePipe
from pontil.runtime.proxy.metrics import pages
from pontil.runtime.proxy.proxy import Proxy
from pontil.runtime.proxy.siblings.stream_record import StreamRecord, StreamRecords
from pontil.runtime.reporting import Reporter
from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.wire.simulated.event_loop import LoopProcess
from pontil.runtime.wire.simulated.processes import FAILED
from pontil.runtime.wire.simulated.virtual_time import ProcessDied

# Seconds between two looks of a proxy that leaves at its connections.
LOOK = 0.1
# Seconds from one page of metrics that a proxy leaves to the next.
PAGE_EVERY = 8.0


class NamedListener:
    """Stands for the launch's listening socket."""

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", 80


class ProxyProcess(LoopProcess):
    """The process of a proxy. It `listens` once the app has started."""

    world: SeededWorld

    def __init__(self, world: SeededWorld, name: str) -> None:
        super().__init__(world, name)
        self.proxy: Proxy | None = None
        self.service: Service | None = None
        self.listens = False
        self.failure: BaseException | None = None
        # Kills it when it next reads a body.
        self.at_a_body: Callable[[], object] | None = None

    def begin(self, config: ProxyConfig, tokenizer: Tokenizer, reporter: Reporter) -> None:
        """Make the proxy and serve, as `run_proxy` does."""

        def make() -> None:
            try:
                proxy = self.proxy = Proxy(config, tokenizer, further=dict.fromkeys(config.further_names, tokenizer))
            except PontilError as error:
                # The folder has another name in each run.
                self.world.note("exit", self, str(error).replace(self.world.disks.folder, ""))
                reporter.failed(str(error))
                self.acts(self.world.now(), lambda: self.kill(FAILED))
                return
            self.at_death.append(lambda: self.end_log(proxy.books.log))
            proxy.bind()
            pairs = pairs_of(tokenizer) if config.reranking_model else None
            app = build_app(proxy, tokenizer if config.embedding_model else None, pairs)
            if config.model_memory is not None:
                proxy.waking.tell = reporter.used
            self.service = Service(proxy, app, cast(Any, NamedListener()), reporter)
            task = self.loop.create_task(self.serve(app))
            task.add_done_callback(self.served)

        self.do(make)

    async def serve(self, app: Any) -> None:
        server = await app.create_server(
            sock=NamedListener(), return_asyncio_server=True, protocol=TimedProtocol, access_log=False
        )
        await server.startup()
        await server.before_start()
        await server.after_start()
        self.listens = True
        app.state.server_info.append(ApplicationServerInfo({}, ServerStage.SERVING))
        self.loop.stopped = lambda: self.loop.create_task(self.leave(server)).add_done_callback(self.served)

    async def leave(self, server: Any) -> None:
        """End the server as sanic does once its loop has stopped, and exit."""
        await server.before_stop()
        self.listens = False
        for connection in in_order(server.connections):
            connection.close_if_idle()
        latest = self.loop.time() + server.app.config.GRACEFUL_SHUTDOWN_TIMEOUT
        while server.connections and self.loop.time() < latest:
            await asyncio.sleep(LOOK)
        for connection in in_order(server.connections):
            connection.abort()
        assert self.proxy is not None
        log = self.proxy.books.log
        waiting, given_up = waiting_rows(log), 0 if log is None else log.given_up
        await server.after_stop()
        if log is not None and log.given_up > given_up:
            self.world.disks.lost_rows |= waiting
        self.acts(self.world.now(), lambda: self.kill(0))

    def served(self, task: Any) -> None:
        self.failure = task.exception()
        if self.failure is not None:
            raise self.failure

    def end_log(self, log: UsageLog | None) -> None:
        """End the usage log as the end of its process does: what was not committed is not there. Note what a bad disk
        did not take in time."""
        if log is None:
            return
        file: Any = log.file
        if file.database is not None:
            file.database.close()
        disks = self.world.disks
        if log.failing or disks.usage_is_late:
            disks.lost_rows |= waiting_rows(log)

    def obey(self, commands: LinePipe) -> None:
        """Have the service obey the commands of the supervisor that have come."""
        if self.service is not None:
            for line in commands.read():
                self.call(self.service.obey, json.loads(line))


def in_order(connections: set[Any]) -> list[Any]:
    """Return connections as they were opened: sanic has them in a set, whose order is that of addresses in memory."""
    return sorted(connections, key=lambda connection: connection.transport.opened)


def waiting_rows(log: UsageLog | None) -> set[str]:
    """Return the requests whose rows are not on the disk yet."""
    rows = [] if log is None else [*log.pending.rows.values(), *log.in_hand.rows.values()]
    return {row.name for row in rows if isinstance(row, RequestRow)}


def read_records_whole() -> None:
    """Have each record of a stream be checked when it is claimed: no line that was written whole may be missing."""
    claim: Callable[[StreamRecords, str], StreamRecord | None] = StreamRecords.claim

    def claimed(records: StreamRecords, name: str) -> StreamRecord | None:
        made = claim(records, name)
        if made is not None:
            written = HERE.world.disks.whole[os.fstat(made.lease.descriptor).st_ino]
            if len(made.lines) != written:
                HERE.world.violate(f"every_record_is_whole: a record has {len(made.lines)} of {written} lines")
        return made

    untyped: Any = StreamRecords
    untyped.claim = claimed


def die_at_a_body() -> None:
    """Have a proxy that is to die when it reads a body do so, once it has recorded that."""
    take: Callable[[InFlightBodies, bytes, str], int] = InFlightBodies.take

    def taken(bodies: InFlightBodies, body: bytes, peer: str) -> int:
        made, process = take(bodies, body, peer), HERE.world.current
        if isinstance(process, ProxyProcess) and process.at_a_body is not None:
            process.at_a_body()
            # Later than its death is what it would do next.
            HERE.world.spend(1e-6)
            raise ProcessDied
        return made

    untyped: Any = InFlightBodies
    untyped.take = taken


def leave_pages_seldom() -> None:
    """Have each proxy leave its page of metrics less often: nobody scrapes them here, and a page costs more than all
    else of an idle second. It still comes before a page is stale."""
    untyped: Any = pages
    untyped.EVERY = PAGE_EVERY


def read_templates_once() -> None:
    """Have jinja parse and compile each template for the first proxy of this process only: all have the same."""
    parse, make = Environment.parse, Environment.compile
    trees, made = dict[str, Any](), dict[Any, Any]()

    def parse_once(own: Environment, source: str) -> Any:
        if source not in trees:
            trees[source] = parse(own, source)
        return trees[source]

    def compile_once(own: Environment, source: Any) -> Any:
        if source not in made:
            made[source] = make(own, source)
        return made[source]

    untyped: Any = Environment
    untyped.parse, untyped.compile = parse_once, compile_once


def adapt_protocol_once() -> None:
    """Have sanic adapt the methods of its protocol, which it compiles anew, for the first app of this process only: all
    apps are alike, and it cannot do it twice."""
    adapt: Callable[[Any], None] = TouchUp.run
    done = list[bool]()

    def once(app: Any) -> None:
        if not done:
            done.append(True)
            adapt(app)

    untyped: Any = TouchUp
    untyped.run = once
