# SPDX-License-Identifier: Apache-2.0
"""The commands that speak to a running server: `chat` and `status`."""

import click

SERVER = "http://127.0.0.1:8000"


@click.command(short_help="Talk to a running server.")
@click.argument("question", required=False)
@click.option("--url", default=SERVER, show_default=True, help="Address of the server.")
@click.option("--model", metavar="NAME", help="The model to talk to (default: the first that is served).")
@click.option("--max-tokens", type=click.IntRange(1), default=512, show_default=True, help="Longest answer.")
@click.option("--temperature", type=click.FloatRange(0, 2), default=0.7, show_default=True, help="0 is greedy.")
def chat(question: str | None, url: str, model: str | None, max_tokens: int, temperature: float) -> None:
    """Talk to a running server from the terminal, or put one QUESTION to it."""
    from pontil.launcher.chat import Chat, converse, first_model

    conversation = Chat(url.rstrip("/"), model or first_model(url), max_tokens, temperature)
    if question is None:
        converse(conversation)
    else:
        conversation.say(question, lambda piece: click.echo(piece, nl=False))
        click.echo()


@click.command()
@click.option("--url", default=SERVER, show_default=True, help="Address of the server.")
def status(url: str) -> None:
    """Show the processes of a running server."""
    from pontil.launcher.chat import fetch

    for row in fetch(url, "/admin/topology")["processes"]:
        load = ", ".join(f"{count} {what.replace('_', ' ')}" for what, count in row.get("load", {}).items())
        told = row.get("reason", load)
        click.echo(f"{row['name']:<12} {row['state'].lower():<9} {row['device']:<8} pid {row['pid'] or '-':<8} {told}")
