# SPDX-License-Identifier: Apache-2.0
"""Pure functions from facts about the models of a launch to findings."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pontil.launcher.doctor.finding import Finding, absent, broken, fine, warning

ModelFacts = Mapping[str, Any]
GIB, MIB, KIB = 1 << 30, 1 << 20, 1 << 10
STREAM = 4096


def judge_models(models: Sequence[ModelFacts]) -> Iterator[Finding]:
    """Yield the findings of each model; of several each subject begins with the model's name."""
    for facts in models:
        prefix = f"{facts['name']}: " if len(models) > 1 else ""
        yield from judge_model(facts, prefix)


def judge_model(facts: ModelFacts, prefix: str) -> Iterator[Finding]:
    for part, sentence in facts["faults"].items():
        yield broken(f"{prefix}{part}", sentence, "a launch with these options is refused", "do as it says")
    if facts.get("unfetched"):
        yield unfetched(f"{prefix}model", facts["name"])
    if (draft := facts.get("unfetched draft")) is not None:
        yield unfetched(f"{prefix}draft model", draft)
    if "scores" in facts and not facts["faults"]:
        yield fine(f"{prefix}model", "scores pairs of texts" if facts["scores"] else "embeds texts")
    if "architecture" in facts:
        yield judge_kind(facts, prefix)
    if "template" in facts:
        yield judge_template(facts["template"], f"{prefix}chat template")
    if "architecture" in facts:
        yield judge_capacity(facts, f"{prefix}model memory")
        yield judge_speed(facts, f"{prefix}model speed")


def unfetched(subject: str, name: str) -> Finding:
    return absent(subject, f"{name} is not in the cache: `pontil pull {name}` fetches it, and so does a launch")


def judge_kind(facts: ModelFacts, prefix: str) -> Finding:
    taken, subject = facts["taken"], f"{prefix}model"
    used = f", of which a token uses {millions(facts['used'])}" if facts["used"] < facts["numbers"] else ""
    words = (
        f"{facts['architecture']}, {facts['layers']} layers, {millions(facts['numbers'])} weights{used}, most of them "
        f"{form_words(taken)} in memory, {facts['vocabulary']} tokens, contexts up to {facts['context']}"
    )
    if not facts["ends"]:
        return warning(
            subject,
            f"{words}, and no end token",
            "every answer goes on until its budget ends",
            "state eos_token_id in generation_config.json",
        )
    if facts["unpacked"] and taken["quantization"] == "gguf":
        meaning = "they take the memory of unquantized ones, and as long to read"
        mend = "nothing, or another quantization of the model"
        return warning(subject, f"{words}; {', '.join(facts['unpacked'])} become {taken['dtype']}", meaning, mend)
    return fine(subject, words)


def form_words(taken: Mapping[str, Any]) -> str:
    form = taken["form"]
    if form["group"] is None:
        return str(taken["dtype"])
    kind = "floats" if form["floats"] else "whole numbers"
    return f"{kind} of {form['bits']} bits with scales"


def judge_template(facts: ModelFacts, subject: str) -> Finding:
    mend = "use completions, or put a chat_template.jinja of the model's makers into its directory"
    if not facts["is_there"]:
        return warning(subject, "none", "chats are refused, completions are served", mend)
    if facts["failure"] is not None:
        return warning(subject, facts["failure"], "chats are refused, completions are served", mend)
    if not facts["writes"]:
        return warning(subject, "it does not write a user's message", "chats may be refused or lose texts", mend)
    return fine(subject, "chats, with tools" if facts["tools"] else "chats, without tools")


def judge_capacity(facts: ModelFacts, subject: str) -> Finding:
    taken, context = facts["taken"], facts["context"]
    tokens, stream = taken["tokens"], min(STREAM, context)
    words = (
        f"{size(taken['weights'])} of weights, {size(taken['token_bytes'])} of KV a token: the {size(taken['kv'])} of "
        f"a worker's KV cache hold {tokens} tokens, which are {tokens // stream} streams of {stream}"
    )
    if tokens < context:
        return warning(
            subject,
            f"{words}, and not its longest context of {context}",
            f"requests of more than {tokens} tokens are refused",
            "give --kv-cache-memory or --kv-cache-dtype int8, or end other programs",
        )
    return fine(subject, words)


def judge_speed(facts: ModelFacts, subject: str) -> Finding:
    taken, speeds, behind = facts["taken"], facts.get("speeds"), facts["behind"]
    basis = f"a token reads {size(taken['read'])} of weights"
    if speeds is None:
        why = facts.get("unmeasured") or "nothing is measured of GPUs"
        return fine(subject, f"{basis}; no estimate: {why}")
    # The context is read as fast as the weights are.
    later = speeds["step"] * (1 + facts["context_bytes"] / max(1, taken["read"]))
    cores = f"{speeds['cores']} core{'s' * (speeds['cores'] != 1)}"
    part = "all layers" if speeds["layers"] == facts["layers"] else f"its first {speeds['layers']} layers"
    return fine(
        subject,
        f"an estimate: one stream has about {about(1 / speeds['step'])} tokens a second, and {about(1 / later)} behind "
        f"{behind}, and prompts {about(1 / speeds['prompt'])} a second, by steps of {part} on {cores} with "
        f"{speeds['kernels']}; {basis}",
    )


def about(rate: float) -> str:
    return f"{rate:.2g}" if rate < 10 else f"{float(f'{rate:.2g}'):.0f}"


def millions(numbers: int) -> str:
    return f"{numbers / 1e9:.1f} billion" if numbers >= 1e9 else f"{numbers / 1e6:.1f} million"


def size(amount: int) -> str:
    for unit, word in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if amount >= unit:
            return f"{amount / unit:.1f} {word}"
    return f"{amount} bytes"
