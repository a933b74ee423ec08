# SPDX-License-Identifier: Apache-2.0
"""The command `chat`, a client of a running server."""

import json
from pathlib import Path

import click

from pontil.launcher.foundation.errors import OptionError
from pontil.launcher.foundation.server_url import SERVER, full_url, is_address
from pontil.launcher.keys.api_key import CLIENT, bearer, key_flag
from pontil.launcher.options.options import read_environment


@click.command(short_help="Talk to a running server.")
@click.argument("words", nargs=-1, metavar="[URL] [QUESTION]")
@click.option("--url", default=SERVER, show_default=True, help="Address of the server.")
@click.option("--model", metavar="NAME", help="The model to talk to (default: the first that is served).")
@click.option("--max-tokens", type=click.IntRange(1), default=512, show_default=True, help="Longest answer.")
@click.option("--temperature", type=click.FloatRange(0, 2), default=0.7, show_default=True, help="0 is greedy.")
@key_flag(CLIENT)
@click.option("--json", "as_json", is_flag=True, help="Print the answer to QUESTION with its figures as JSON.")
def chat(
    words: tuple[str, ...],
    url: str,
    model: str | None,
    max_tokens: int,
    temperature: float,
    key: Path | None,
    as_json: bool,
) -> None:
    """Talk to a running server from the terminal, or put one QUESTION to it. Its address may be an argument or --url.
    In a conversation /help lists what else can be typed."""
    from pontil.launcher.commands.terminal.chat_session import ChatSession
    from pontil.launcher.commands.terminal.chat_terminal import converse
    from pontil.launcher.foundation.server_client import first_model

    if words and is_address(words[0]):
        url, words = words[0], words[1:]
    if len(words) > 1:
        raise OptionError("A QUESTION is one argument: put it in quotes.")
    question = words[0] if words else None
    if as_json and not question:
        raise OptionError("--json prints one answer: give a QUESTION.")
    headers = bearer(key, CLIENT, read_environment().variables)
    params = {"max_tokens": max_tokens, "temperature": temperature}
    url = full_url(url)
    conversation = ChatSession(url, model or first_model(url, headers), params, headers)
    if question is None:
        converse(conversation)
    elif as_json:
        click.echo(json.dumps(conversation.say(question, lambda piece: None).shown))
    else:
        conversation.say(question, lambda piece: click.echo(piece, nl=False))
        click.echo()
