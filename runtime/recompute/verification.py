# SPDX-License-Identifier: Apache-2.0
"""The check of a file's receipts: their signatures, then everything that they state, computed again."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pontil.gpu_ops.kernels.compile.instruction_sets import INSTRUCTION_SETS
from pontil.gpu_ops.kernels.kernel_set import TORCH
from pontil.runtime.config.worker_config import EXACT, FAST, QUANTIZATIONS, WorkerConfig
from pontil.runtime.engine.sequences.streamed import MediaInputs
from pontil.runtime.errors import RequestError
from pontil.runtime.foundation.entry_points import entry_point, missing
from pontil.runtime.foundation.staged_model import StagedModel
from pontil.runtime.loaders.facts.json_fields import read_json
from pontil.runtime.receipts.answer_file import AnswerFile
from pontil.runtime.receipts.statement import ADAPTER, ENCODER, MOST_ID, NoReceipt, Receipt
from pontil.runtime.recompute.recompute import difference, recompute
from pontil.runtime.reporting import NoReports
from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.wire.compatibility import DETERMINISTIC, ON_GPU, ROW_PARALLEL, promises_bits
from pontil.runtime.worker.start.assembly import WorkerResources, assemble


@dataclass(frozen=True, slots=True)
class Verification:
    """The outcome for one receipt, in words: it is `equal`, or where it first differs."""

    equal: bool
    text: str


def alone(config: WorkerConfig) -> WorkerConfig:
    """Return the configuration of a worker of one process."""
    return config


@dataclass(frozen=True, slots=True)
class Recomputation:
    """The way in which receipts are computed again: by the model at `path`, with the `kernels` of this name instead of
    those of the receipt, beside `company` other requests, on these cores; by so many `ranks`, if not by as many as the
    receipt's sums depend on; with the `adapter` in this directory, where the receipt is of one, and about the `media`
    in these files, names and contents, where its prompt has any. `start_ranks` starts all ranks but this process, and
    completes the configuration."""

    path: Path
    cache: Path
    cores: tuple[int, ...]
    kernels: str | None = None
    company: int = 0
    ranks: int = 1
    adapter: Path | None = None
    media: Sequence[tuple[str, bytes]] = ()
    start_ranks: Callable[[WorkerConfig], WorkerConfig] = alone

    def config(self, receipt: Receipt) -> WorkerConfig:
        """Return a worker's configuration that computes as the receipt says it was computed."""
        statement = receipt.statement
        is_on_gpu = statement["kernels"].startswith(ON_GPU)
        graph = self.graph if receipt.media else None
        return WorkerConfig(
            name="verify",
            role="mixed",
            device="cuda:0" if is_on_gpu else "cpu",
            cores=self.cores,
            model=str(self.path),
            served_model_name=statement["model"],
            control="",
            peer_endpoint="",
            cache_dir=str(self.cache),
            dtype=statement["dtype"] or "auto",
            kv_cache_dtype=statement["kv_cache_dtype"] or "auto",
            kernels=self.kernels or kernels_of(statement["kernels"]),
            quantization=quantization_of(statement["kernels"]),
            deterministic=is_on_gpu and DETERMINISTIC in statement["kernels"],
            ranks=ranks_of(statement["kernels"]) or self.ranks,
            adapter=() if self.adapter is None or not receipt.adapter else (f"{ADAPTER}={self.adapter}",),
            tensor_parallel_arithmetic=FAST if ranks_of(statement["kernels"]) else EXACT,
            graph=None if graph is None else graph.name,
            node=None if graph is None else graph.first,
        )

    @property
    def graph(self) -> StagedModel | None:
        """The stages of the model, if it has several. Raises NoReceipt where they are not installed, and ModelError."""
        if (sentence := missing("graph-of-architectures")) is not None:
            raise NoReceipt(sentence)
        architectures = read_json(self.path / "config.json").get("architectures")
        graph: StagedModel | None = entry_point("graph-of-architectures")(architectures)
        return graph

    def shown(self, receipt: Receipt, prompt: list[int], machine: WorkerResources) -> MediaInputs | None:
        """Encode the recordings and images of a prompt that has any. Raises RequestError for files that have others,
        and NoReceipt where they are missing."""
        if not receipt.media:
            if self.media:
                raise NoReceipt("its prompt has no recordings and no images: leave out --media")
            return None
        if len(self.media) != len(receipt.media):
            says = f"its prompt has {len(receipt.media)} recordings and images, and here are {len(self.media)}"
            raise NoReceipt(f"{says}: give the file of each, in their order, by --media FILE")
        told, graph = receipt.statement[ENCODER], self.graph
        kernels, about = self.kernels or kernels_of(told["kernels"]), self.config(receipt)
        node = None if graph is None else graph.encoder
        config = replace(about, role="node", node=node, device="cpu", kernels=kernels, ranks=1, quantization="none")
        made: MediaInputs = entry_point("stated-media")(
            config, machine.stage, prompt, receipt.media, told["fingerprint"], self.media
        )
        return made

    def open(self, receipt: Receipt) -> WorkerResources:
        """Load the model. Raises ModelError."""
        return assemble(self.start_ranks(self.config(receipt)), NoReports())


def kernels_of(name: str) -> str:
    """Return the choice of kernels that has this name in a receipt."""
    found = (one.name for one in INSTRUCTION_SETS if name.startswith(f"{one.title}-"))
    return next(found, TORCH)


def quantization_of(name: str) -> str:
    """Return the quantization that is named behind a receipt's kernels."""
    return next((word for word in name.split() if word in QUANTIZATIONS), "none")


def ranks_of(name: str) -> int | None:
    """Return the number of ranks on which the sums of a receipt's kernels depend, if they do."""
    _, depends, count = name.partition(ROW_PARALLEL)
    return int(count.split()[0]) if depends and count.split()[:1] and count.split()[0].isdecimal() else None


def verified(file: AnswerFile, how: Recomputation, prompt: str | None) -> Iterator[Verification]:
    """Yield for each receipt of a file, whose signatures hold, whether it is equal when it is computed again. `prompt`
    is the content of a file with its prompt. Raises ModelError and ReceiptError for what cannot be computed."""
    machine: WorkerResources | None = None
    media: tuple[Receipt, MediaInputs | None] | None = None
    for number, receipt in enumerate(file.receipts):
        if machine is None or how.config(receipt) != how.config(file.receipts[number - 1]):
            if machine is not None:
                machine.driver.close()
            machine, media = how.open(receipt), None
        if (other := identity_difference(receipt, machine)) is not None:
            yield Verification(False, other)
            continue
        ids = prompt_of(receipt, prompt, machine.tokenizer)
        if (shown := text_difference(file.texts(number), receipt, ids, machine.tokenizer)) is not None:
            yield Verification(False, shown)
            continue
        try:
            if media is None or media[0].statement["prompt_sha256"] != receipt.statement["prompt_sha256"]:
                media = receipt, how.shown(receipt, ids, machine)
        except RequestError as error:
            yield Verification(False, str(error))
            continue
        try:
            made = recompute(receipt, ids, machine, how.company, media[1])
        except RequestError as error:
            yield Verification(False, f"this model cannot compute it: {error}")
            continue
        found = difference(receipt, made)
        if found is None:
            kinds = "tokens and logits" if receipt.statement["top_logits"] else "tokens"
            yield Verification(True, f"{len(made.tokens)} {kinds} are equal")
        else:
            yield Verification(False, f"{found}{excuse(receipt, machine)}")


def identity_difference(receipt: Receipt, machine: WorkerResources) -> str | None:
    """Return in words whether the model here is another one than the receipt's."""
    statement = receipt.statement
    for name, ours in (("model_fingerprint", machine.fingerprint), ("tokenizer", machine.tokenizer.digest)):
        if statement[name] != ours:
            what = "model" if name == "model_fingerprint" else "tokenizer"
            return f"the {what} is {ours[:16]} here, and the receipt has {statement[name][:16]}"
    found = machine.adapters.by_name.get(ADAPTER, "")
    if receipt.adapter != found:
        here = found[:16] or "none: give its directory by --adapter"
        return f"the adapter of the receipt is {receipt.adapter[:16]}, and here it is {here}"
    return None


def excuse(receipt: Receipt, machine: WorkerResources) -> str:
    """Return what may be the reason of a difference, beside a wrong receipt: what no promise is about."""
    stated = receipt.statement["kernels"]
    if not promises_bits(stated):
        return f"; kernels of {stated} promise no equal bits"
    if stated != machine.kernels:
        return f"; it was made by the kernels {stated}, and these are {machine.kernels}"
    return ""


def prompt_of(receipt: Receipt, text: str | None, tokenizer: Tokenizer) -> list[int]:
    """Return the prompt's ids: those of the receipt, else of a file with ids in JSON, or with the text. Raises
    ReceiptError for ids that are not the receipt's."""
    if text is None:
        if receipt.prompt is None:
            raise NoReceipt("it has the digest of its prompt alone: give the prompt by --prompt FILE")
        return receipt.prompt
    receipt.check_ids("prompt", ids := ids_in(text, tokenizer), "prompt_tokens")
    return ids


def ids_in(text: str, tokenizer: Tokenizer) -> list[int]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        data = None
    if isinstance(data, list) and all(type(one) is int and 0 <= one < MOST_ID for one in data):
        return data
    return tokenizer.encode(text, True)


def text_difference(texts: list[str], receipt: Receipt, prompt: list[int], tokenizer: Tokenizer) -> str | None:
    """Return in words whether an answer shows a text that is not of the receipt's tokens, behind the prompt's."""
    ids = [*prompt, *receipt.tokens]
    whole = [tokenizer.decode(ids, skip_special_tokens=skipped) for skipped in (True, False)]
    if all(any(text in shown for shown in whole) for text in texts):
        return None
    return "the answer's text is not that of the receipt's tokens"
