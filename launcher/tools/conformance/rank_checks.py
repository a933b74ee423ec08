# SPDX-License-Identifier: Apache-2.0
"""Checks of ranked documents and scored pairs, which a server may lack. They ask for no model by its name: the one that
scores is seldom the one that generates."""

from typing import Any

from pontil.launcher.tools.conformance.api import Api, PartRefused, expect
from pontil.launcher.tools.conformance.check import Check, topic

CHECKS: list[Check] = []
ranks = topic("rerank and score", CHECKS)

ABSENT = (404, 405, 501)
RERANK, SCORE = "/v1/rerank", "/v1/score"
QUERY = "What do keepers light?"
# The first and the last are equal.
DOCUMENTS = ["The keeper lit the lamp.", "The sea was loud.", "Nine.", "The keeper lit the lamp."]
# Scores of one pair beside others may be rounded otherwise.
NEAR = 1e-3


def asked(api: Api, path: str, **body: Any) -> dict[str, Any]:
    """Return an answer. Raises PartRefused, with its sentence if it has one, where no model scores."""
    answer = api.post(path, {"model": None, **body})
    if answer.status in ABSENT and b'"error"' not in answer.data:
        raise PartRefused(f"there is nothing at {path}")
    return answer.optional()


def ranked(api: Api, **body: Any) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = asked(api, RERANK, query=QUERY, documents=DOCUMENTS, **body)["results"]
    return results


def scores(api: Api) -> dict[int, float]:
    return {one["index"]: float(one["relevance_score"]) for one in ranked(api)}


def near(one: float, other: float) -> bool:
    return abs(one - other) <= NEAR


@ranks("an answer has an id, each document once, the best one first, and its tokens")
def shape(api: Api) -> None:
    answer = asked(api, RERANK, query=QUERY, documents=DOCUMENTS)
    found = [float(one["relevance_score"]) for one in answer["results"]]
    expect(answer["id"] and found == sorted(found, reverse=True), f"no id, or scores in another order: {found}")
    places = sorted(one["index"] for one in answer["results"])
    expect(places == list(range(len(DOCUMENTS))), f"documents {places}")
    tokens = (answer.get("usage") or answer["meta"]["billed_units"]).values()
    expect(any(isinstance(count, int) and count > 0 for count in tokens), "no tokens are counted")


@ranks("equal documents have equal scores")
def equal(api: Api) -> None:
    found = scores(api)
    expect(near(found[0], found[len(DOCUMENTS) - 1]), f"scores {found}")


@ranks("top_n shows the best ones of all")
def best(api: Api) -> None:
    whole = scores(api)
    found = [(one["index"], float(one["relevance_score"])) for one in ranked(api, top_n=2)]
    expect(len(found) == 2, f"{len(found)} documents")
    expect(all(near(score, whole[index]) for index, score in found), f"scores {found} of {whole}")
    rest = [score for index, score in whole.items() if index not in dict(found)]
    expect(max(rest) <= min(score for _, score in found) + NEAR, f"{found} are not the best of {whole}")


@ranks("return_documents shows the texts, also of documents that are objects")
def texts(api: Api) -> None:
    given = [{"text": text} for text in DOCUMENTS]
    for one in asked(api, RERANK, query=QUERY, documents=given, return_documents=True)["results"]:
        expect(one["document"]["text"] == DOCUMENTS[one["index"]], f"document {one['document']}")


@ranks("pairs are scored in their order, by the scores that documents are ranked by, with usage")
def scored(api: Api) -> None:
    answer = asked(api, SCORE, text_1=QUERY, text_2=DOCUMENTS)
    found, whole = [float(one["score"]) for one in answer["data"]], scores(api)
    expect([one["index"] for one in answer["data"]] == list(range(len(DOCUMENTS))), "another order, or too few")
    expect(all(near(score, whole[index]) for index, score in enumerate(found)), f"scores {found}, ranked by {whole}")
    expect(answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] > 0, f"usage {answer['usage']}")


@ranks("as many texts as others are scored each with its own")
def paired(api: Api) -> None:
    turned = asked(api, SCORE, text_1=[QUERY, DOCUMENTS[2]], text_2=[DOCUMENTS[1], DOCUMENTS[2]])["data"]
    expect(len(turned) == 2 and near(float(turned[0]["score"]), scores(api)[1]), f"scores {turned}")


@ranks("a request without documents is an error that names them")
def wrong(api: Api) -> None:
    ranked(api)
    answer = api.post(RERANK, {"model": None, "query": QUERY})
    expect(answer.status in (400, 422), f"expected status 400, not {answer.shown}")
    expect("documents" in answer.error()["message"], f"the message does not name them: {answer.shown}")
