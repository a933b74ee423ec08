# SPDX-License-Identifier: Apache-2.0
"""The routes of files and batches of one proxy. Without a usage log, which they are kept beside, each says so."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from sanic import HTTPResponse, Request

from pontil.http.access.endpoint import Endpoint, Handler
from pontil.http.anthropic.schema import MESSAGES_ERROR
from pontil.http.batch import schema
from pontil.http.batch.batches_route import BATCH, BatchesRoutes
from pontil.http.batch.book_reader import BookReader
from pontil.http.batch.files_route import FILE_FORM, FilesRoutes
from pontil.http.batch.line_request import LineRoutes
from pontil.http.batch.making import Batches, book_of
from pontil.http.batch.message_batches_route import MESSAGE_BATCH, MessageBatchesRoutes
from pontil.http.batch.runner import BatchRunner
from pontil.http.intake.body import BODY_ERRORS, BodyReader
from pontil.runtime.errors import RequestError
from pontil.runtime.proxy.proxy import Proxy

KEPT = (400, 404, 409, 503)
MADE = (*BODY_ERRORS, 503)


class BatchRoutes:
    """The files and batches of one proxy. `handlers` answer their lines, by path, while the server `knows` the caller;
    a line may be as long as a body."""

    def __init__(
        self, proxy: Proxy, handlers: Mapping[str, Handler], bodies: BodyReader, knows: Callable[[str], bool]
    ) -> None:
        book = book_of(proxy.config)
        self.is_kept = book is not None
        # Without a usage log the routes are described, and refused before they look at it.
        self.reader = BookReader(book)  # type: ignore[arg-type]
        runner = BatchRunner(proxy, self.reader, LineRoutes(handlers, knows), bodies.most)
        if self.is_kept:
            proxy.tasks.add(runner.run)
        batches = Batches(proxy, self.reader, runner)
        self.files = FilesRoutes(self.reader, bodies.most)
        self.batches = BatchesRoutes(batches, self.files, bodies)
        self.messages = MessageBatchesRoutes(batches, bodies)

    def endpoints(self) -> tuple[Endpoint, ...]:
        table = (*self.file_endpoints(), *self.batch_endpoints(), *self.message_endpoints())
        return table if self.is_kept else tuple(replace(endpoint, handler=refusing(endpoint)) for endpoint in table)

    def file_endpoints(self) -> tuple[Endpoint, ...]:
        files = self.files
        return (
            Endpoint(
                "POST",
                "/v1/files",
                files.create_file,
                "Keep a file.",
                schema.FILE,
                FILE_FORM,
                errors=MADE,
                body_type="multipart/form-data",
            ),
            Endpoint(
                "GET",
                "/v1/files",
                files.list_files,
                "The files that are kept.",
                schema.FILES,
                errors=KEPT,
                asks=schema.FILE_PAGE,
            ),
            Endpoint("GET", "/v1/files/{file_id}", files.get_file, "One of them.", schema.FILE, errors=KEPT),
            Endpoint(
                "GET",
                "/v1/files/{file_id}/content",
                files.file_content,
                "What is in it by now.",
                schema.LINES,
                errors=KEPT,
                content_type="application/octet-stream",
            ),
            Endpoint(
                "DELETE", "/v1/files/{file_id}", files.delete_file, "Forget a file.", schema.DELETED_FILE, errors=KEPT
            ),
        )

    def batch_endpoints(self) -> tuple[Endpoint, ...]:
        batches = self.batches
        return (
            Endpoint(
                "POST",
                "/v1/batches",
                batches.create_batch,
                "Answer the requests in a file's lines.",
                schema.BATCH,
                BATCH,
                errors=MADE,
            ),
            Endpoint(
                "GET",
                "/v1/batches",
                batches.list_batches,
                "The batches.",
                schema.BATCHES,
                errors=KEPT,
                asks=schema.PAGE,
            ),
            Endpoint("GET", "/v1/batches/{batch_id}", batches.get_batch, "One of them.", schema.BATCH, errors=KEPT),
            Endpoint(
                "POST",
                "/v1/batches/{batch_id}/cancel",
                batches.cancel_batch,
                "Answer no more of its lines.",
                schema.BATCH,
                errors=KEPT,
            ),
        )

    def message_endpoints(self) -> tuple[Endpoint, ...]:
        messages, path = self.messages, "/v1/messages/batches"
        table = (
            Endpoint(
                "POST",
                path,
                messages.create_message_batch,
                "Answer several messages, as Anthropic does.",
                schema.MESSAGE_BATCH,
                MESSAGE_BATCH,
                errors=MADE,
            ),
            Endpoint(
                "GET",
                path,
                messages.list_message_batches,
                "The batches.",
                schema.MESSAGE_BATCHES,
                errors=KEPT,
                asks=schema.MESSAGE_PAGE,
            ),
            Endpoint(
                "GET",
                f"{path}/{{batch_id}}",
                messages.get_message_batch,
                "One of them.",
                schema.MESSAGE_BATCH,
                errors=KEPT,
            ),
            Endpoint(
                "DELETE",
                f"{path}/{{batch_id}}",
                messages.delete_message_batch,
                "Forget a batch.",
                schema.DELETED_BATCH,
                errors=KEPT,
            ),
            Endpoint(
                "GET",
                f"{path}/{{batch_id}}/results",
                messages.message_batch_results,
                "Its results by now.",
                schema.LINES,
                errors=KEPT,
                content_type="application/x-jsonl",
            ),
            Endpoint(
                "POST",
                f"{path}/{{batch_id}}/cancel",
                messages.cancel_message_batch,
                "Answer no more of it.",
                schema.MESSAGE_BATCH,
                errors=KEPT,
            ),
        )
        return tuple(replace(endpoint, error=MESSAGES_ERROR) for endpoint in table)


def refusing(endpoint: Endpoint) -> Handler:
    """Return the handler of a route that nothing is kept for. Its name describes the operation."""

    async def refuse(request: Request, **_: str) -> HTTPResponse | None:
        says = "files and batches are kept beside the usage log, and this server has none: start it with --usage-log"
        raise RequestError(says, status=404, code="not_supported")

    refuse.__name__ = endpoint.handler.__name__
    return refuse
