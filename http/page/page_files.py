# SPDX-License-Identifier: Apache-2.0
"""The files of the live page, read once and served from memory. None of them has data: the page asks for that."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sanic import HTTPResponse, Request
from sanic.exceptions import NotFound
from sanic.response import empty, raw, redirect

FOLDER = Path(__file__).parent
PAGE = "index.html"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Nothing inline, nothing from elsewhere, in no frame; and no text becomes markup, even by a mistake in a script.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
        "form-action 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # A browser asks each time whether its copy is current, so that an upgrade shows at once.
    "cache-control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file, with the tag of its content."""

    body: bytes
    content_type: str
    tag: str


def read_files(folder: Path = FOLDER) -> Mapping[str, PageFile]:
    files = {}
    for path in sorted(folder.iterdir()):
        if path.suffix in TYPES:
            body = path.read_bytes()
            files[path.name] = PageFile(body, TYPES[path.suffix], f'"{hashlib.sha256(body).hexdigest()[:24]}"')
    return files


class PageRoutes:
    """Handlers that serve the files: the name that a client gives is looked up in a table, and is no path."""

    def __init__(self) -> None:
        self.files = read_files()

    async def admin_page(self, request: Request) -> HTTPResponse:
        if request.path.endswith("/"):
            return redirect("../ui", headers=HEADERS, status=308)
        return self.answer(request, self.files[PAGE])

    async def admin_page_file(self, request: Request, file: str) -> HTTPResponse:
        if file not in self.files or file == PAGE:
            raise NotFound
        return self.answer(request, self.files[file])

    def answer(self, request: Request, file: PageFile) -> HTTPResponse:
        headers = HEADERS | {"etag": file.tag}
        if file.tag in request.headers.getone("if-none-match", ""):
            return empty(304, headers=headers)
        return raw(file.body, content_type=file.content_type, headers=headers)
