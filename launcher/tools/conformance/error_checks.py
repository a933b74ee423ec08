# SPDX-License-Identifier: Apache-2.0
"""Checks of errors and of HTTP."""

from pontil.launcher.tools.conformance.api import Api, ApiAnswer, exchange, expect
from pontil.launcher.tools.conformance.check import Check, topic

CHECKS: list[Check] = []
errors, http = topic("errors", CHECKS), topic("HTTP", CHECKS)


def refused(answer: ApiAnswer, *statuses: int) -> None:
    expect(answer.status in statuses, f"expected status {' or '.join(map(str, statuses))}, not {answer.shown}")
    answer.error()


@errors("a body that is no JSON is refused with 400")
def no_json(api: Api) -> None:
    refused(api.send("POST", "/v1/chat/completions", b'{"model": '), 400, 422)


@errors("a model that is not served is refused with 404")
def no_model(api: Api) -> None:
    refused(api.chat(model="no-such-model"), 404)


@errors("a missing field is refused with 400")
def no_messages(api: Api) -> None:
    refused(api.post("/v1/chat/completions", {}), 400, 422)


@errors("an empty list of messages is refused with 400")
def empty(api: Api) -> None:
    refused(api.chat(messages=[]), 400, 422)


@errors("a message of an unknown role is refused with 400")
def no_role(api: Api) -> None:
    refused(api.chat(messages=[{"role": 7, "content": "Hello"}]), 400, 422)


@errors("a temperature that is not from 0 to 2 is refused with 400")
def temperature(api: Api) -> None:
    refused(api.chat(temperature=-1), 400, 422)


@errors("a number as text is refused with 400")
def number(api: Api) -> None:
    refused(api.chat(max_tokens="many"), 400, 422)


@errors("no choices at all are refused with 400")
def no_choices(api: Api) -> None:
    refused(api.chat(n=0), 400, 422)


@errors("too many most likely tokens are refused with 400")
def top_logprobs(api: Api) -> None:
    refused(api.chat(logprobs=True, top_logprobs=1_000_000), 400, 422)


@errors("a prompt longer than the context is refused with 400, which names the maximum context length")
def context(api: Api) -> None:
    answer = api.complete(prompt="one two three " * 200_000)
    refused(answer, 400, 413)
    if answer.status == 400:
        message = answer.error()["message"]
        expect("maximum context length" in message or "context" in message, f"the message is {message[:120]!r}")


@http("an unknown route is 404")
def route(api: Api) -> None:
    expect(api.post("/v1/no-such-route", {}).status == 404, "another status")


@http("a method that a route does not have is 405")
def method(api: Api) -> None:
    answer = api.get("/v1/chat/completions")
    expect(answer.status == 405, f"expected status 405, not {answer.shown}")


@http("a connection can be used again, also after an error")
def again(api: Api) -> None:
    connection = api.connection()
    try:
        for path in ("/v1/models", "/v1/no-such-route", "/v1/models"):
            answer = exchange(connection, "GET", path, None, api.key)
        answer.good()
    finally:
        connection.close()


@http("a client that leaves in mid-stream harms no other")
def leaves(api: Api) -> None:
    api.leave()
    api.complete().good()
