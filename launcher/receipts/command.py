# SPDX-License-Identifier: Apache-2.0
"""The command `verify`: receipts, checked and computed again."""

from pathlib import Path
from typing import Any

import click

from pontil.launcher.foundation.errors import OptionError
from pontil.launcher.keys.receipt_key import read_public_key
from pontil.launcher.options.options import read_environment
from pontil.launcher.receipts.verification import RecomputeOptions, verify_receipts

FILE = click.Path(path_type=Path)
# More than an answer with a prompt of a million tokens takes.
MOST_BYTES = 1 << 28
MOST_COMPANY, MOST_RANKS = 64, 64
WHAT_MEDIA = "a recording or an image of the prompt"


@click.command(short_help="Check a receipt, and compute again what it states.")
@click.argument("file", type=FILE)
@click.option("--model", metavar="NAME|PATH", help="The model, if the receipt's name of it is not that of one here.")
@click.option("--adapter", type=FILE, metavar="DIR", help="The adapter that it was made with.")
@click.option("--prompt", type=FILE, metavar="FILE", help="Its prompt: a text, or token ids as a JSON list.")
@click.option(
    "--media",
    type=FILE,
    multiple=True,
    metavar="FILE",
    help="A recording or image of its prompt; each, in their order.",
)
@click.option("--key", metavar="HEX|FILE", help="Accept receipts of this public key alone.")
@click.option("--kernels", metavar="NAME", help="Compute with these kernels instead of the receipt's.")
@click.option(
    "--batch", type=click.IntRange(1, MOST_COMPANY), default=1, metavar="COUNT", help="Compute so many at once."
)
@click.option(
    "--ranks", type=click.IntRange(1, MOST_RANKS), default=1, metavar="COUNT", help="Compute in so many processes."
)
@click.option("--signature-only", is_flag=True, help="Check the signature, and compute nothing.")
def verify(file: Path, prompt: Path | None, key: str | None, signature_only: bool, **computing: Any) -> int:
    """Check the receipts in FILE: exit code 0 when they hold, 1 when not, with where they first differ.

    FILE is a receipt, an answer that carries one, or the events of a stream. No server is needed: the model is loaded
    here, and every token is drawn again. With --batch it is computed beside others,
    and with --ranks by several processes, which changes nothing if the receipt is right.
    """
    text = text_of(file, "the file of the receipt")
    prompt_text = None if prompt is None else text_of(prompt, "the prompt")
    trusted = None if key is None else read_public_key(key, "--key")
    company = computing.pop("batch") - 1
    media = [(str(path), content(path, WHAT_MEDIA)) for path in computing.pop("media")]
    environment = read_environment()
    cache, access = environment.cache_directory, environment.hub_access
    options = RecomputeOptions(cache=cache, company=company, access=access, media=media, **computing)
    wanted = None if signature_only else options
    is_equal = True
    for holds, line in verify_receipts(text, prompt_text, trusted, wanted):
        click.echo(f"{'equal ' if holds else 'DIFFER'}  {line}")
        is_equal = is_equal and holds
    return 0 if is_equal else 1


def content(path: Path, what: str) -> bytes:
    """Return the bytes of a file. Raises OptionError."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise OptionError(f"{path} cannot be read ({error.strerror}): name {what}.") from None
    if len(data) > MOST_BYTES:
        raise OptionError(f"{path} is larger than {MOST_BYTES >> 20} MiB: name {what}.")
    return data


def text_of(path: Path, what: str) -> str:
    """Return the text of a file. Raises OptionError."""
    try:
        return content(path, what).decode()
    except UnicodeDecodeError:
        raise OptionError(f"{path} is no text in UTF-8: name {what}.") from None
