# SPDX-License-Identifier: Apache-2.0
"""The check of receipts, in this process. Imports are inside: only where something is computed is torch loaded."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pontil.launcher.foundation.errors import OptionError
from pontil.launcher.receipts.rank_processes import rank_processes
from pontil.runtime.config.hub_access import PUBLIC, HubAccess
from pontil.runtime.errors import PontilError

if TYPE_CHECKING:
    from pontil.runtime.receipts.answer_file import AnswerFile


@dataclass(frozen=True, slots=True)
class RecomputeOptions:
    """The way in which receipts are computed again: by a model, if not the one that they name, with the caches in this
    folder, by these kernels instead of theirs, beside `company` other requests, in so many processes, with the
    `adapter` in this directory, about `media`, names and contents of files. `access` is to the hub that may have the
    model."""

    model: str | None
    cache: Path
    kernels: str | None = None
    company: int = 0
    ranks: int = 1
    adapter: Path | None = None
    media: Sequence[tuple[str, bytes]] = ()
    access: HubAccess = PUBLIC


def verify_receipts(
    text: str, prompt: str | None, trusted: bytes | None, wanted: RecomputeOptions | None
) -> Iterator[tuple[bool, str]]:
    """Check the receipts in a file's text: yield for each whether it holds, in words. They are computed again if that
    is `wanted`. Raises OptionError for what is no receipt, or cannot be computed here."""
    from pontil.runtime.receipts.answer_file import read_answer_file
    from pontil.runtime.receipts.signing import check
    from pontil.runtime.receipts.statement import NoReceipt, ReceiptError

    try:
        file = read_answer_file(text)
        check(file, trusted)
        if wanted is None:
            yield from ((True, f"signed by {receipt.public_key.hex()}") for receipt in file.receipts)
        else:
            yield from recomputed(file, prompt, wanted)
    except NoReceipt as error:
        raise OptionError(f"{error}.") from None
    except ReceiptError as error:
        yield False, str(error)
    except PontilError as error:
        raise OptionError(f"{error}.") from None


def recomputed(file: "AnswerFile", prompt: str | None, wanted: RecomputeOptions) -> Iterator[tuple[bool, str]]:
    from pontil.runtime.loaders.builtin import resolve_model
    from pontil.runtime.recompute.verification import Recomputation, verified

    path = resolve_model(wanted.model or file.receipts[0].statement["model"], wanted.cache, wanted.access)
    cores = tuple(sorted(os.sched_getaffinity(0)))
    with rank_processes() as ranks:
        ways = (wanted.kernels, wanted.company, wanted.ranks, wanted.adapter, wanted.media)
        how = Recomputation(path, wanted.cache, cores, *ways, start_ranks=ranks.start)
        for verification in verified(file, how, prompt):
            yield verification.equal, verification.text
