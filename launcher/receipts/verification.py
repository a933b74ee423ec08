# SPDX-License-Identifier: Apache-2.0
"""The check of receipts, in this process. Imports are inside: only where something is computed is torch loaded."""

import os
from collections.abc import Iterator
from pathlib import Path

from pontil.launcher.foundation.errors import OptionError
from pontil.runtime.errors import PontilError


def verify_receipts(
    text: str, prompt: str | None, trusted: bytes | None, wanted: "tuple[str | None, Path, str | None, int] | None"
) -> Iterator[tuple[bool, str]]:
    """Check the receipts in a file's text: yield for each whether it holds, in words. What is `wanted` is to compute
    them again: by this model, with the caches in this folder, by these kernels, beside so many others; None: nothing.
    Raises OptionError for what is no receipt, or cannot be computed here."""
    from pontil.runtime.receipts.answer_file import read_answer_file
    from pontil.runtime.receipts.signing import check
    from pontil.runtime.receipts.statement import NoReceipt, ReceiptError

    try:
        file = read_answer_file(text)
        check(file, trusted)
        if wanted is None:
            yield from ((True, f"signed by {receipt.public_key.hex()}") for receipt in file.receipts)
            return
        from pontil.runtime.loaders.builtin import resolve_model
        from pontil.runtime.recompute.verification import Recomputation, verified

        model, cache, kernels, company = wanted
        path = resolve_model(model or file.receipts[0].statement["model"], cache)
        how = Recomputation(path, cache, tuple(sorted(os.sched_getaffinity(0))), kernels, company)
        for verification in verified(file, how, prompt):
            yield verification.equal, verification.text
    except NoReceipt as error:
        raise OptionError(f"{error}.") from None
    except ReceiptError as error:
        yield False, str(error)
    except PontilError as error:
        raise OptionError(f"{error}.") from None
