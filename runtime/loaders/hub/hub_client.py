# SPDX-License-Identifier: Apache-2.0
"""HTTP to a hub: who is asked, who is shown the token, and what each refusal means.

The hub's files come by a redirect from other hosts. These are asked by https only, and never shown the token.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse
from ssl import SSLCertVerificationError
from typing import Any
from urllib.parse import urljoin, urlsplit
from urllib.request import HTTPHandler, HTTPSHandler, OpenerDirector, ProxyHandler, Request

from pontil.runtime.config.hub_access import HubAccess
from pontil.runtime.errors import ModelError
from pontil.runtime.foundation.loopback import LOCALHOST, is_loopback
from pontil.runtime.loaders.hub.patience import PassingError, Patience, TransferPace

REDIRECTS = (301, 302, 303, 307, 308)
MOST_REDIRECTS = 5
PASSING = (408, 425, 429, 500, 502, 503, 504)
NO_ACCESS = (401, 403)
# Bytes of a list of files, and of one read.
MOST_JSON, CHUNK = 64 << 20, 1 << 20
MOST_TOKEN = 4096


class HubClient:
    """A hub as `access` says it. Each request is one attempt."""

    def __init__(self, access: HubAccess, patience: Patience) -> None:
        self.access, self.patience = access, patience
        self.endpoint = access.endpoint.rstrip("/")
        self.home = checked_home(self.endpoint)
        self.token = None if access.token is None else checked_token(access.token, self.home)
        # No handler of redirects, of errors, or of other schemes: `follow` does these.
        self.opener = OpenerDirector()
        for handler in (ProxyHandler(), HTTPHandler(), HTTPSHandler()):
            self.opener.add_handler(handler)

    @contextmanager
    def open(self, url: str, headers: Mapping[str, str] = {}) -> Iterator[HTTPResponse]:  # noqa: B006
        """Ask for a page of the hub, and follow where it redirects to: the response of 200, 206 or 416. Raises
        ModelError, and PassingError where another attempt may succeed."""
        response = self.follow(url, headers)
        try:
            refuse(response, host_of(response.url))
            yield response
        finally:
            response.close()

    def follow(self, url: str, headers: Mapping[str, str]) -> HTTPResponse:
        for _ in range(MOST_REDIRECTS + 1):
            response = self.ask(url, headers)
            if response.status not in REDIRECTS:
                return response
            response.close()
            try:
                url = urljoin(url, response.headers.get("Location", ""))
            except ValueError:
                raise ModelError(f"{host_of(url)} redirects to what is no address: {TRY_LATER}") from None
        raise ModelError(f"the hub redirects more than {MOST_REDIRECTS} times: {TRY_LATER}")

    def ask(self, url: str, headers: Mapping[str, str]) -> HTTPResponse:
        """Return one response as it is. Raises PassingError."""
        place = urlsplit(url)
        host, is_home = host_of(url), (place.scheme, place.netloc.lower()) == self.home
        if not is_home and (place.scheme != "https" or "@" in place.netloc):
            raise ModelError(f"the hub redirects to {host}, not by https: {TRY_LATER}")
        try:
            request = Request(url, headers={"Accept-Encoding": "identity", "User-Agent": "pontil", **headers})
            if self.token is not None and is_home:
                request.add_unredirected_header("Authorization", f"Bearer {self.token}")
            response = self.opener.open(request, timeout=self.patience.silence)
        except (OSError, HTTPException) as error:
            if isinstance(getattr(error, "reason", error), SSLCertVerificationError):
                raise ModelError(f"{host} shows a certificate that is not trusted ({reason_of(error)})") from None
            raise PassingError(f"{host} cannot be reached ({reason_of(error)})") from None
        except ValueError:
            raise ModelError(f"the hub redirects to what is no address: {TRY_LATER}") from None
        assert isinstance(response, HTTPResponse)
        return response

    def chunks(self, response: HTTPResponse) -> Iterator[bytes]:
        """Yield what comes, until the other side ends it. Raises PassingError for a connection that breaks."""
        host = host_of(response.url)
        pace = TransferPace(self.patience, host)
        try:
            while chunk := response.read1(CHUNK):
                pace.add(len(chunk))
                yield chunk
        except (OSError, HTTPException, ValueError) as error:
            raise PassingError(f"the connection to {host} broke ({reason_of(error)})") from None

    def json(self, url: str) -> tuple[Any, str | None]:
        """Return a page's value, and the address of the page that follows it. Raises ModelError."""
        return self.patience.insist(lambda: self.read_json(url))

    def read_json(self, url: str) -> tuple[Any, str | None]:
        with self.open(url) as response:
            content = bytearray()
            for chunk in self.chunks(response):
                content += chunk
                if len(content) > MOST_JSON:
                    raise ModelError(f"the hub answers with more than {MOST_JSON >> 20} MiB: {TRY_LATER}")
            length = response.headers.get("Content-Length", "")
            if length.isdecimal() and len(content) < int(length):
                raise PassingError(f"{host_of(url)} ended its answer before its end")
            try:
                return json.loads(content), next_page(url, response.headers.get("Link", ""))
            except (ValueError, RecursionError):
                raise ModelError(f"{host_of(url)} does not answer as a hub does: check HF_ENDPOINT") from None


TRY_LATER = "try again later, or give a local path"


def next_page(url: str, link: str) -> str | None:
    """Return the address of the next page of a list, from the header that names it."""
    for part in link.split(","):
        place, _, relation = part.partition(";")
        if relation.strip() in ('rel="next"', "rel=next"):
            return urljoin(url, place.strip().strip("<>"))
    return None


def refuse(response: HTTPResponse, host: str) -> None:
    """Raise for a response that is none that was asked for."""
    status = response.status
    if status in (200, 206, 416):
        return
    if status in PASSING:
        after = response.headers.get("Retry-After", "")
        raise PassingError(f"{host} is busy (HTTP {status})", float(after) if after.isdecimal() else 0.0)
    if status in NO_ACCESS:
        # The hub answers so for what does not exist too, unless it knows who asks.
        raise ModelError("there is no such model, or it needs a token: check the id, accept its terms, set HF_TOKEN")
    if status == 404:
        raise ModelError("there is no such model, revision or file: check the id")
    raise ModelError(f"{host} answers with HTTP {status}: {TRY_LATER}")


def checked_home(endpoint: str) -> tuple[str, str]:
    """Return the scheme and the host of a hub. Raises ModelError."""
    try:
        place = urlsplit(endpoint)
        is_right = place.scheme in ("http", "https") and bool(place.hostname) and "@" not in place.netloc
        place.port  # noqa: B018 (a number out of range raises)
    except ValueError:
        is_right = False
    if not is_right or not endpoint.isprintable() or not endpoint.isascii():
        raise ModelError("HF_ENDPOINT must be the address of a hub, like https://huggingface.co")
    return place.scheme, place.netloc.lower()


def checked_token(token: str, home: tuple[str, str]) -> str:
    """Return a token that may be sent. Raises ModelError, which does not show it."""
    if not (token.isascii() and token.isprintable() and " " not in token and len(token) <= MOST_TOKEN):
        raise ModelError("HF_TOKEN is no token: copy it anew from the hub's settings")
    scheme, netloc = home
    host = urlsplit(f"//{netloc}").hostname or ""
    if scheme != "https" and host != LOCALHOST and not is_loopback(host):
        raise ModelError("HF_TOKEN would travel readably by http: give HF_ENDPOINT an https address, or unset HF_TOKEN")
    return token


def host_of(url: str) -> str:
    """Return the host of an address, as a message may show it: the rest may be signed, and a secret."""
    host = urlsplit(url).netloc.rpartition("@")[2]
    return host[:100] if host.isprintable() and host else "a host without a name"


def reason_of(error: Exception) -> str:
    """Return what is wrong, in a few words on one line."""
    cause = getattr(error, "reason", error)
    text = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
    return " ".join(str(text).split())[:200]
