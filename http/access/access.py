# SPDX-License-Identifier: Apache-2.0
"""Authentication and authorisation (F5), decided once per request before its body is read, and the names by which a
server may be called.

Pages of other origins may not act as the operator whose browser shows them (cross-site request forgery). On the
server's own machine the routes of /admin/ need no key, so that any page could ask for them there. Browsers say with
each request where it comes from (Fetch standard, Fetch Metadata); programs say nothing of it.
"""

import re
import time
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from sanic import Request

from pontil.http.access.endpoint import RouteAccess
from pontil.http.access.keyring import ADMIN, Caller, FailedKeys, Keyring
from pontil.runtime.errors import RequestError
from pontil.runtime.foundation.loopback import LOCALHOST, is_loopback
from pontil.runtime.proxy.requests.ticket import NO_KEY, UNLIMITED

ANY = "*"
EXPOSED = (
    "x-request-id, x-pontil-route, x-pontil-ignored, x-pontil-lines, x-pontil-schema, x-pontil-sample-rate, "
    "x-pontil-stream, x-pontil-lease, x-pontil-lease-refused, retry-after, traceparent"
)
# Names of headers that a page wants to send, in a list.
NAMES = re.compile(r"[A-Za-z0-9_, -]{1,1024}")
MAX_AGE_SECONDS = 600


class CrossOrigin:
    """The origins whose pages may read; "*" for all. Without any, no answer has a header of this kind."""

    def __init__(self, origins: Iterable[str] = ()) -> None:
        self.origins = frozenset(origins)

    def headers(self, request_headers: Mapping[str, str], preflight: str | None = None) -> dict[str, str]:
        """Return the headers of an answer to a request with these headers. `preflight` are the methods of the path,
        where the browser is asking before it sends a request."""
        origin = request_headers.get("origin", "")
        if not self.origins or not origin:
            return {}
        # A cache must not give one origin the answer to another.
        cors_headers = {} if ANY in self.origins else {"vary": "origin"}
        if not self.origins & {ANY, origin.lower()}:
            return cors_headers
        cors_headers["access-control-allow-origin"] = ANY if ANY in self.origins else origin
        if preflight is None:
            return cors_headers | {"access-control-expose-headers": EXPOSED}
        cors_headers |= {"access-control-allow-methods": preflight, "access-control-max-age": str(MAX_AGE_SECONDS)}
        names = request_headers.get("access-control-request-headers", "")
        return cors_headers | ({"access-control-allow-headers": names} if NAMES.fullmatch(names) else {})


class AllowedHosts:
    """Names that this machine has for itself, the bound host, and the `given` names. Any name is allowed if "*" is
    given, or if the server is bound to a network and no name is given."""

    def __init__(self, bound: str, given: Iterable[str] = ()) -> None:
        names = {plain(name) for name in given}
        self.any = ANY in names or (not names and not is_local(plain(bound)))
        self.names = names | {plain(bound)}

    def admit(self, host_headers: Iterable[str]) -> bool:
        """Return whether the Host headers are allowed. Browsers always send one, so a request without Host is no
        page."""
        return self.any or all(is_local(name) or name in self.names for name in map(named, host_headers))


def named(host: str) -> str:
    """Return the name or address in a Host header, without its port."""
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    return plain(name)


def plain(name: str) -> str:
    return name.strip("[]").lower().removesuffix(".")


def is_local(name: str) -> bool:
    """Return whether a name or an address means, on every machine, that machine itself."""
    return name == LOCALHOST or name.endswith(f".{LOCALHOST}") or is_loopback(name)


# The caller of requests that need no key.
NOBODY = Caller(NO_KEY, allowance=UNLIMITED)
SCHEME, OTHER_HEADER = "bearer", "x-api-key"
# Headers that a proxy adds to a forwarded request: a request with one of them does not come from this machine.
PASSED_ON = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip")
CHALLENGE = {"www-authenticate": "Bearer"}
ITS_OWN = ("same-origin", "none")
READING = ("GET", "HEAD")
JSON = "application/json"


def foreign_page(method: str, headers: Mapping[str, str]) -> str | None:
    """Return why a request is one of another origin's page, or None. A link to what is only read may be followed; a
    frame, which the operator need not even see, may not."""
    site = headers.get("sec-fetch-site")
    is_visit = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest", "document") == "document"
    is_link = method in READING and is_visit
    if site is not None and site not in ITS_OWN and not is_link:
        return "a page of another site asked for this: open /admin/ui of this server itself"
    origin = headers.get("origin")
    if origin is not None and not is_of(origin, headers.get("host", "")):
        return f"a page of {ascii(origin)[1:-1]:.100} asked for this: open /admin/ui of this server itself"
    if method not in (*READING, "OPTIONS") and not headers.get("content-type", "").lower().startswith(JSON):
        # Any page may send a form or plain text to any server, and an old browser says nothing of where it comes from.
        return f"what is to be done must be told as JSON: send it with content-type: {JSON}"
    return None


def is_of(origin: str, host: str) -> bool:
    """Return whether an origin is the one that a Host header names. Its scheme may be that of a proxy in front."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(host) and parts.netloc.lower() == host.lower()


class AccessDenied(RequestError):
    """An error of status 401, 403 or 429, with its headers."""

    def __init__(self, message: str, status: int, code: str, headers: dict[str, str]) -> None:
        super().__init__(message, status=status, code=code)
        self.headers = headers


class Access:
    """Access rules of the app. `doors` maps a route's path to its access level; a path without a route needs a key.
    Without keys, `hosts` are the names by which the server may be called. An admin key, where there is one, is asked
    for wherever a request comes from: what a proxy on this machine passes on looks like a request of this machine."""

    def __init__(self, keyring: Keyring, doors: dict[str, RouteAccess], hosts: AllowedHosts) -> None:
        self.keyring, self.doors, self.hosts = keyring, doors, hosts
        self.wrong = FailedKeys()

    def admit(self, request: Request) -> Caller:
        """Return the caller, or raise AccessDenied. A second call for one request gives the same verdict."""
        verdict: Caller | AccessDenied | None = getattr(request.ctx, "judged", None)
        if verdict is None:
            try:
                verdict = self.judge(request)
            except AccessDenied as error:
                verdict = error
            request.ctx.judged = verdict
        if isinstance(verdict, AccessDenied):
            raise verdict
        return verdict

    def still_admits(self, request: Request) -> bool:
        """Return whether the keys of now admit a request whose answer goes on."""
        try:
            self.judge(request)
        except AccessDenied:
            return False
        return True

    def check_operator(self, request: Request) -> None:
        """Raise AccessDenied for a request that could not ask the routes of the operator."""
        self.judge_at(RouteAccess.ADMIN, request)

    def judge(self, request: Request) -> Caller:
        """Return the caller. Raises AccessDenied."""
        return self.judge_at(RouteAccess.KEY if request.route is None else self.doors[request.route.path], request)

    def judge_at(self, door: RouteAccess, request: Request) -> Caller:
        """Return the caller, as a route of this level has it. Raises AccessDenied."""
        if door is RouteAccess.PAGE and not is_here(request) and self.keyring.admin is None:
            raise shut(self.keyring)
        if door in (RouteAccess.OPEN, RouteAccess.PAGE):
            return NOBODY
        if door is RouteAccess.ADMIN and self.keyring.admin is None and is_here(request):
            check_origin(request)
            return NOBODY
        # A browser asks by OPTIONS without the key that the page will send; the answer tells the path's methods only.
        asks = request.method == "OPTIONS" and request.route is not None
        if asks or (door is RouteAccess.KEY and not self.keyring.guards):
            if not self.keyring.guards:
                self.check_host(request)
            return NOBODY
        if door is RouteAccess.ADMIN and not self.keyring.guards and self.keyring.admin is None:
            raise shut(self.keyring)
        caller = self.caller(request, "the admin key" if door is RouteAccess.ADMIN else "an API key")
        if door is RouteAccess.ADMIN and not caller.admin:
            raise shut(self.keyring)
        return caller

    def is_operators(self, request: Request) -> bool:
        """Return whether the route is for the operator alone: no page of another origin may read it, whoever may read
        the others."""
        route = request.route
        return route is not None and self.doors[route.path] in (RouteAccess.ADMIN, RouteAccess.PAGE)

    def check_host(self, request: Request) -> None:
        """Check the Host headers. Raises AccessDenied."""
        host_headers: list[str] = request.headers.getall("host", [])
        if not self.hosts.admit(host_headers):
            says = (
                f"the header Host names {ascii(host_headers[0]):.150}, which is no name of this server: call it "
                "localhost, or have it started with --allowed-hosts, or with API keys"
            )
            raise AccessDenied(says, 403, "host_not_allowed", {})

    def caller(self, request: Request, needed_key: str) -> Caller:
        """Return the owner of the request's key. Raises AccessDenied, which says that the `needed_key` is needed."""
        owner = self.keyring.caller(shown_key(request, needed_key))
        if owner is None:
            says = "the API key is not one of this server's: check it, or ask who runs the server for one"
            wait = self.wrong.note(peer_of(request), time.monotonic())
            if wait is not None:
                says = f"too many wrong API keys came from your address: try again in {wait} s, with a right one"
                raise AccessDenied(says, 429, "rate_limit_exceeded", {"retry-after": str(wait)})
            raise refusal(says)
        return owner


def sees_all(request: Request) -> bool:
    """Return whether an admitted request may be told of the requests of all clients: without API keys all are one."""
    return request.ctx.ticket.caller in (NOBODY.name, ADMIN.name)


def check_origin(request: Request) -> None:
    """Raise AccessDenied for what a page of another origin asks for in a browser on this machine, where no key is
    needed."""
    if request.method != "OPTIONS" and (reason := foreign_page(request.method, request.headers)):
        raise AccessDenied(reason, 403, "foreign_origin", {})


def shown_key(request: Request, needed_key: str) -> bytes:
    """Return the bearer token, or the key in the header that Anthropic's clients use. Raises AccessDenied where it is
    missing or malformed, and for several."""
    authorization_headers: list[str] = request.headers.getall("authorization", [])
    key_headers: list[str] = request.headers.getall(OTHER_HEADER, [])
    if not authorization_headers and not key_headers:
        raise refusal(f"{needed_key} is needed: send it in the header Authorization: Bearer KEY")
    scheme, _, key = (
        authorization_headers[0].strip().partition(" ") if authorization_headers else (SCHEME, " ", key_headers[0])
    )
    key = key.strip()
    if len(authorization_headers) + len(key_headers) > 1 or scheme.lower() != SCHEME or not key or " " in key:
        raise refusal("the header Authorization is not of the form Bearer KEY: send one such header")
    return key.encode("utf-8", "surrogateescape")


def refusal(says: str) -> AccessDenied:
    return AccessDenied(says, 401, "invalid_api_key", CHALLENGE)


def shut(keyring: Keyring) -> AccessDenied:
    if keyring.admin is None:
        says = "this is for the server's own machine only: ask there, or start the server with an admin key"
    else:
        says = "this needs the admin key, which the key that was sent is not"
    return AccessDenied(says, 403, "admin_key_required", {})


def peer_of(request: Request) -> str:
    """Return the address of the socket's peer; headers are ignored."""
    connection: Any = request.conn_info
    return str(connection.client_ip) if connection is not None else ""


def is_here(request: Request) -> bool:
    """Return whether the request was made on this machine: the peer is loopback, the Host names this machine, and no
    header of a forwarding proxy is there. A page in a browser that reached this server by DNS rebinding sends another
    Host."""
    local = is_local(named(request.headers.getone("host", "")))
    return is_loopback(peer_of(request)) and local and not any(name in request.headers for name in PASSED_ON)
