# SPDX-License-Identifier: Apache-2.0
"""Errors that are expected to happen. Each message says what is wrong and what to do about it."""


class PontilError(Exception):
    """Base of every expected error, as opposed to a bug."""


class RequestError(PontilError):
    """A client's request that cannot be served as it stands.

    `status` is the HTTP status, `param` the offending field of the request where there is one, `code` a short
    machine-readable name as the OpenAI error object has it.
    """

    def __init__(self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code


class TooManyRequests(RequestError):
    """More than this caller may ask for now: HTTP 429. `retry_after` is in seconds; the code that raises it spreads it,
    so that refused clients do not all retry at once."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message, status=429, code="rate_limit_exceeded")
        self.retry_after = retry_after


class OtherAdapter(RequestError):
    """A request that an operator sends again, and whose name stands for another adapter than when it was recorded: HTTP
    412, by which nothing else is refused."""

    STATUS = 412

    def __init__(self, message: str) -> None:
        super().__init__(message, status=self.STATUS, param="model", code="adapter_changed")


class OtherModel(RequestError):
    """A request that an operator sends again to one worker, and that is of another model than that one has: HTTP
    421, by which nothing else is refused."""

    STATUS = 421

    def __init__(self, message: str) -> None:
        super().__init__(message, status=self.STATUS, param="model", code="other_model")


class Unavailable(PontilError):
    """The request was good but cannot be served now (no worker, overload, a worker died): HTTP 503. `retry_after` is in
    seconds, None where it is not known."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ModelError(PontilError):
    """A model that cannot be found, read or run: wrong name, corrupt file, unknown architecture, too little memory."""


class GraphError(ModelError):
    """A model of several stages whose graph or placement cannot run. Raised before anything starts."""


class DraftModelError(ModelError):
    """A draft model that cannot guess for the model that is served: unknown, too large, or with another tokenizer."""


class AdapterError(ModelError):
    """An adapter that cannot be computed for the model that is served: damaged, of another base, or of another kind."""


class MalformedFrame(PontilError):
    """Bytes from a peer that are not a valid message. Counted and dropped, never fatal."""


class IncompatiblePeer(PontilError):
    """Another process runs a different model, layout or protocol version."""


class RankLost(PontilError):
    """Another rank of the same worker has ended or no longer answers. This one ends because of it: the cause is
    there."""


class GroupLeaves(PontilError):
    """Another rank of the same group, a worker of its own, leaves in order: this one does so too."""


class TransferError(PontilError):
    """KV blocks could not be pulled, or the pulled blocks failed verification."""


class UsageLogError(PontilError):
    """A usage log that cannot be opened: it does not exist, belongs to another program or a newer version, or is in
    use."""
