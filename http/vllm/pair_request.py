# SPDX-License-Identifier: Apache-2.0
"""Requests to score pairs of texts: documents for one query, as Cohere, Jina and vLLM rank them, or vLLM's pairs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pontil.http.fields.client_fields import INERT
from pontil.http.fields.prompt import MAX_PRIORITY, TO_FIT, PromptFields
from pontil.http.fields.service_tier import SERVICE_TIER
from pontil.http.schema.parameter import Parameter, ParameterTable, Schema, opened
from pontil.http.schema.parameter_types import FlagType, IntegerType, NeutralType, TextType
from pontil.http.schema.reader import Fields, IgnoredFields

# Pairs of one request, as many as there may be inputs of one for vectors.
MAX_PAIRS = 2048
MAX_INSTRUCTION = 16_000
A_TEXT = 'a string or an object with "text"'
TEXT_SCHEMA: Schema = {
    "anyOf": [{"type": "string", "minLength": 1}, opened(["text"], text={"type": "string", "minLength": 1})]
}


def read_text(fields: Fields, name: str, value: Any) -> str:
    """Return a text, which may be in an object. Raises RequestError for one that is empty, or for anything else."""
    if isinstance(value, dict):
        inner = fields.item(value, name)
        value = inner.required_text("text")
        inner.ignore_rest()
    if not isinstance(value, str):
        raise fields.typed(name, value, A_TEXT)
    if not value:
        raise fields.wrong(name, "is empty: leave it out, or give it some text")
    return value


@dataclass(frozen=True, slots=True)
class OneTextType:
    """A text."""

    def read(self, fields: Fields, name: str) -> str:
        return read_text(fields, name, fields.take(name))

    def schema(self, vocab_size: int) -> Schema:
        return TEXT_SCHEMA | {"title": "a text"}


@dataclass(frozen=True, slots=True)
class TextsType:
    """A text, or a list of at most `most`."""

    most: int

    def read(self, fields: Fields, name: str) -> tuple[str, ...]:
        value = fields.take(name)
        if not isinstance(value, list):
            return (read_text(fields, name, value),)
        if len(value) > self.most:
            raise fields.wrong(name, f"may hold at most {self.most} texts, not {len(value)}: send several requests")
        if not value:
            raise fields.wrong(name, "is empty: give at least one text")
        return tuple(read_text(fields, f"{name}[{index}]", item) for index, item in enumerate(value))

    def schema(self, vocab_size: int) -> Schema:
        texts = {"type": "array", "items": TEXT_SCHEMA, "minItems": 1, "maxItems": self.most}
        return {"title": f"a text, or at most {self.most}", "anyOf": [*TEXT_SCHEMA["anyOf"], texts]}


@dataclass(frozen=True, slots=True)
class NamedTexts:
    """The texts of one side of the pairs, and the parameter that has them."""

    name: str
    texts: tuple[str, ...]

    def place(self, index: int) -> str:
        """Return the name of one of them, as errors show it."""
        return self.name if len(self.texts) == 1 else f"{self.name}[{index}]"


@dataclass(frozen=True, slots=True)
class PairRequest:
    """A request for the scores of pairs: the `first` text with each `second` one, or each with its own. Second texts
    are cut to `most_of_second` tokens, and pairs to `handling.truncate`, by cutting the second text. A decoder is told
    the `instruction`; None: the usual one."""

    model: str | None
    first: NamedTexts
    second: NamedTexts
    instruction: str | None
    most_of_second: int | None
    handling: PromptFields

    def first_of(self, index: int) -> int:
        """Return the number of the first text of a pair."""
        return index if len(self.first.texts) > 1 else 0


@dataclass(frozen=True, slots=True)
class RerankRequest:
    """A request to rank documents: the best `top_n` are shown, all if it is None, with their texts if so asked."""

    pairs: PairRequest
    top_n: int | None
    with_documents: bool


OF_ALL = (
    Parameter(
        "instruction",
        TextType(0, MAX_INSTRUCTION),
        "what a decoder is told to look for; of no effect with a cross-encoder",
    ),
    Parameter(
        "truncate_prompt_tokens",
        IntegerType(TO_FIT),
        "cut each pair to so many tokens, at the end of its "
        "second text; -1: to as many as fit; absent: a pair that does not fit is an error",
    ),
    Parameter("priority", IntegerType(-MAX_PRIORITY, MAX_PRIORITY), "who waits for a worker: the lowest goes first", 0),
    Parameter("use_activation", NeutralType((True,)), "give scores as the model makes them"),
    SERVICE_TIER,
    *INERT,
)
MODEL = Parameter("model", TextType(), "the name of the model that scores; absent: the one that is served")
DOCUMENT_LIMIT = Parameter("max_tokens_per_doc", IntegerType(1), "cut each document to so many tokens of its own")
RERANK = (
    MODEL,
    Parameter("query", OneTextType(), "what the documents are to answer", required=True),
    Parameter("documents", TextsType(MAX_PAIRS), "the texts to rank", required=True),
    Parameter("top_n", IntegerType(0), "show so many, the best ones; absent or 0: all"),
    Parameter("return_documents", FlagType(), "show each one's text", False),
    DOCUMENT_LIMIT,
    Parameter(
        "rank_fields",
        NeutralType((["text"],), "may be text alone: put all that counts into it"),
        "fields of a document",
    ),
    *OF_ALL,
)
# Names of either side: vLLM's older ones, its newer ones, and those of texts and pictures alike.
FIRSTS, SECONDS = ("text_1", "queries", "data_1"), ("text_2", "documents", "items", "data_2")
SCORE = (
    MODEL,
    *(Parameter(name, TextsType(MAX_PAIRS), "the first text of the pairs, or each one's own") for name in FIRSTS),
    *(Parameter(name, TextsType(MAX_PAIRS), "the second text of each pair") for name in SECONDS),
    DOCUMENT_LIMIT,
    *OF_ALL,
)
RERANK_TABLE, SCORE_TABLE = ParameterTable(RERANK), ParameterTable(SCORE)


def read_rerank(data: Mapping[str, Any], ignored: IgnoredFields | None = None) -> RerankRequest:
    """Parse a request to rank documents. Raises RequestError, naming the parameter, for anything invalid."""
    fields = Fields(data, ignored=ignored)
    values = RERANK_TABLE.read(fields)
    sides = NamedTexts("query", (values["query"],)), NamedTexts("documents", values["documents"])
    return RerankRequest(pair_request(fields, values, *sides), values["top_n"] or None, values["return_documents"])


def read_score(data: Mapping[str, Any], ignored: IgnoredFields | None = None) -> PairRequest:
    """Parse a request for scores. Raises RequestError as `read_rerank` does."""
    fields = Fields(data, ignored=ignored)
    values = SCORE_TABLE.read(fields)
    first, second = side(fields, values, FIRSTS), side(fields, values, SECONDS)
    if len(first.texts) not in (1, len(second.texts)):
        says = f"has {len(first.texts)} texts and {second.name} {len(second.texts)}: give one for all, or one for each"
        raise fields.wrong(first.name, says)
    return pair_request(fields, values, first, second)


def side(fields: Fields, values: Mapping[str, Any], names: tuple[str, ...]) -> NamedTexts:
    """Return the texts of one side, which one of these parameters has."""
    given = [name for name in names if values[name] is not None]
    if not given:
        raise fields.wrong(names[0], f"is missing: give it, or {' or '.join(names[1:])}", "missing_required_parameter")
    if len(given) > 1:
        raise fields.wrong(given[1], f"means the same as {given[0]}: give one of the two")
    return NamedTexts(given[0], values[given[0]])


def pair_request(fields: Fields, values: Mapping[str, Any], first: NamedTexts, second: NamedTexts) -> PairRequest:
    truncate = values["truncate_prompt_tokens"]
    if truncate == 0:
        raise fields.wrong("truncate_prompt_tokens", "must be at least 1, or -1 to keep as much as fits, not 0")
    handling = PromptFields(True, truncate, "", values["priority"], True, values["service_tier"])
    return PairRequest(values["model"], first, second, values["instruction"], values["max_tokens_per_doc"], handling)
