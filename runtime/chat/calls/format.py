# SPDX-License-Identifier: Apache-2.0
"""The formats in which models write tool calls, each as a declaration.

Sources are the models' chat templates and cards: Hermes 2 Pro and Qwen 2.5 and 3; Llama 3.1; Mistral 7B v0.3 and
Mistral Small 3.2; Qwen3-Coder; DeepSeek V3 and V3.1; GLM-4.5; Kimi K2; Llama 4; gpt-oss.
"""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pontil.runtime.chat.calls.syntax import (
    NAME,
    CallSyntax,
    EitherSyntax,
    NamedSyntax,
    ObjectSyntax,
    PythonSyntax,
    XmlSyntax,
)
from pontil.runtime.chat.calls.xml_arguments import XmlTags

FENCE = "```"
LETTERS = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True)
class CallFormat:
    """Calls are read behind one or several of `openings`, and each of `closings` behind a call is part of it. What is
    written is `begin`, calls with `between` between two of them, and `end`; each call is `before`, the syntax's text,
    `after`.

    Without `anywhere` an answer holds calls only if it begins with one, and further calls need no opening. `lists` are
    calls in brackets: never, maybe or always. `bare`: a call may lack its markers at the beginning of a line, or stand
    in a code fence there. `taught`: the model's template is not known to have this format, so that an answer that has
    to be a call is one call.
    """

    name: str
    syntax: CallSyntax
    openings: tuple[str, ...]
    closings: tuple[str, ...]
    begin: str = ""
    before: str = ""
    after: str = ""
    between: str = "\n"
    end: str = ""
    anywhere: bool = True
    lists: str = "never"
    bare: bool = False
    taught: bool = False
    separators: str = ""
    messages: bool = False
    """True if an answer is a row of messages, of which a call is one and ends the answer."""
    make_id: Callable[[str, int], str] | None = None
    """Makes a call's id from its name and number, if the format's chat templates want them in a form of their own."""

    def head(self, name: str) -> str:
        """The text before the arguments of a call of this function."""
        return self.before + self.syntax.head(name)

    @property
    def tail(self) -> str:
        return self.syntax.tail + self.after

    @property
    def trigger(self) -> str:
        """The text at which every call begins, or the first of several; empty if it is none of its own."""
        return self.openings[0] if self.anywhere else ""

    def written(self, name: str, values: Mapping[str, Any]) -> str:
        """One call without what stands around all of them."""
        return self.head(name) + self.syntax.arguments(values) + self.tail


def short_id(name: str, number: int) -> str:
    """Nine letters and digits, on which Mistral's templates insist."""
    return "".join(secrets.choice(LETTERS) for _ in range(9))


def numbered_id(name: str, number: int) -> str:
    return f"functions.{name}:{number}"


# The templates of Qwen2.5 and Qwen2.5-Coder are equal, but the latter seldom writes the tags that they ask for: it
# writes a code fence, JSON alone, or the tags around the tools that it was shown.
HERMES = CallFormat(
    "hermes",
    ObjectSyntax("arguments"),
    ("<tool_call>", "<tools>"),
    ("</tool_call>", "</tools>"),
    before="<tool_call>\n",
    after="\n</tool_call>",
    lists="maybe",
    bare=True,
)
LLAMA3_JSON = CallFormat(
    "llama3_json",
    ObjectSyntax("parameters"),
    ("<|python_tag|>", "<|python_start|>"),
    ("<|python_end|>",),
    between="; ",
    separators=";",
    anywhere=False,
)
LLAMA4_PYTHONIC = CallFormat(
    "llama4_pythonic", PythonSyntax(), ("<|python_start|>",), ("<|python_end|>",),
    begin="[", between=", ", end="]", anywhere=False, lists="always",
)  # fmt: skip
MISTRAL_NAMED = NamedSyntax("", "[ARGS]", "", re.compile(rf"\s*{NAME}(?:\[CALL_ID\](?P<id>\w+))?(?:\[ARGS\])?\s*{{"))
MISTRAL_OBJECT = ObjectSyntax("arguments")
MISTRAL = CallFormat(
    "mistral", EitherSyntax(MISTRAL_OBJECT, MISTRAL_NAMED, writes_objects=True), ("[TOOL_CALLS]",), (),
    begin="[TOOL_CALLS] [", between=", ", end="]", lists="maybe", make_id=short_id,
)  # fmt: skip
MISTRAL_V11 = CallFormat(
    "mistral_v11",
    EitherSyntax(MISTRAL_OBJECT, MISTRAL_NAMED, writes_objects=False),
    ("[TOOL_CALLS]",),
    (),
    before="[TOOL_CALLS]",
    between="",
    lists="maybe",
    make_id=short_id,
)
QWEN3_CODER = CallFormat(
    "qwen3_coder",
    XmlSyntax(
        XmlTags("<parameter=", ">", "", "</parameter>", "</function>", lines=True),
        "<function=", ">\n", "", re.compile(rf"\s*{NAME}\s*>"), keep=False,
    ),
    ("<tool_call>", "<function="), ("</tool_call>",), before="<tool_call>\n", after="\n</tool_call>",
)  # fmt: skip
GLM45 = CallFormat(
    "glm45",
    XmlSyntax(
        XmlTags("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "</tool_call>", lines=False),
        "",
        "\n",
        "",
        re.compile(rf"\s*{NAME}\s*<"),
        keep=True,
    ),
    ("<tool_call>",),
    (),
    before="<tool_call>",
)
DEEPSEEK_OPENINGS = ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>")
DEEPSEEK_CLOSINGS = (FENCE, "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>")
DEEPSEEK_V3 = CallFormat(
    "deepseek_v3",
    NamedSyntax(
        "function<｜tool▁sep｜>",
        "\n```json\n",
        "\n```",
        re.compile(rf"\s*function\s*<｜tool▁sep｜>\s*{NAME}\s*(?:```(?:json)?)?\s*{{"),
    ),
    DEEPSEEK_OPENINGS,
    DEEPSEEK_CLOSINGS,
    begin="<｜tool▁calls▁begin｜>",
    before="<｜tool▁call▁begin｜>",
    after="<｜tool▁call▁end｜>",
    end="<｜tool▁calls▁end｜>",
)
DEEPSEEK_V31 = CallFormat(
    "deepseek_v31",
    NamedSyntax("", "<｜tool▁sep｜>", "", re.compile(rf"\s*{NAME}\s*<｜tool▁sep｜>\s*{{")),
    DEEPSEEK_OPENINGS,
    DEEPSEEK_CLOSINGS,
    begin="<｜tool▁calls▁begin｜>",
    before="<｜tool▁call▁begin｜>",
    after="<｜tool▁call▁end｜>",
    between="",
    end="<｜tool▁calls▁end｜>",
)
KIMI_K2 = CallFormat(
    "kimi_k2",
    NamedSyntax(
        "functions.", ":0<|tool_call_argument_begin|>", "",
        re.compile(rf"\s*(?P<id>(?:functions\.)?{NAME}(?::[0-9]+)?)\s*<\|tool_call_argument_begin\|>\s*{{"),
    ),
    ("<|tool_calls_section_begin|>", "<|tool_call_begin|>"), ("<|tool_call_end|>", "<|tool_calls_section_end|>"),
    begin="<|tool_calls_section_begin|>", before="<|tool_call_begin|>", after="<|tool_call_end|>", between="",
    end="<|tool_calls_section_end|>", make_id=numbered_id,
)  # fmt: skip
HARMONY = CallFormat(
    "harmony",
    NamedSyntax("", " <|constrain|>json<|message|>", "", MISTRAL_NAMED.pattern),
    ("<|channel|>",),
    (),
    before="<|channel|>commentary to=functions.",
    between="<|call|><|start|>assistant",
    messages=True,
)
FORMATS: Mapping[str, CallFormat] = {
    call_format.name: call_format
    for call_format in (
        HERMES, LLAMA3_JSON, LLAMA4_PYTHONIC, MISTRAL, MISTRAL_V11, QWEN3_CODER, GLM45, DEEPSEEK_V3, DEEPSEEK_V31,
        KIMI_K2, HARMONY,
    )
}  # fmt: skip
