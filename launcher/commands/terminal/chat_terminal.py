# SPDX-License-Identifier: Apache-2.0
"""The terminal of a conversation: typed turns, and the commands that change it."""

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from pontil.launcher.commands.terminal.chat_session import ChatSession
from pontil.launcher.foundation.errors import LaunchError
from pontil.launcher.options.options import read_environment

HELP = """\
/system TEXT        set the system message; without TEXT, remove it
/params NAME=VALUE  set fields of the requests, like temperature=0.2 seed=7; NAME= removes one; alone, shows them
/save FILE          write the conversation as JSON
/clear              forget all turns
/exit               end the conversation, as Ctrl-D does
//TEXT              say something that begins with a slash
Enter sends; Alt-Enter begins another line. Ctrl-C ends an answer."""
PROMPT = "> "
# The conversation's own fields of a request.
OWN = {"messages", "model", "stream", "stream_options"}


class EndOfChat(Exception):
    """The user has ended the conversation."""


def converse(chat: ChatSession) -> None:
    """Read turns until end of file. Ctrl-C ends the answer; between answers it ends the conversation."""
    try:
        for text in turns():
            if text.startswith("/") and not text.startswith("//"):
                command(chat, text)
            else:
                turn(chat, text.removeprefix("/"))
    except EndOfChat:
        pass


def turns() -> Iterator[str]:
    """Yield what is typed, without empty turns: on a terminal whole turns, else each line."""
    read_turn = on_terminal() if sys.stdin.isatty() and sys.stdout.isatty() else input
    while True:
        try:
            text = read_turn().strip()
        except (EOFError, KeyboardInterrupt):
            print()
            return
        if text:
            yield text


def on_terminal() -> Callable[[], str]:
    """Return a reader of turns of several lines, with the history of earlier conversations."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import FileHistory, History, InMemoryHistory
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    keys = KeyBindings()

    @keys.add("enter")
    def send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def next_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    file = history_file()
    history: History = InMemoryHistory() if file is None else FileHistory(str(file))
    session: PromptSession[str] = PromptSession(
        PROMPT, multiline=True, key_bindings=keys, history=history, prompt_continuation=". "
    )
    return session.prompt


def history_file() -> Path | None:
    """Return the file of earlier turns, which only the user can read; None where none can be kept."""
    state = read_environment().variables.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    file = Path(state) / "pontil" / "chat_history"
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(file, os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    except OSError:
        return None
    return file


def turn(chat: ChatSession, text: str) -> None:
    try:
        answer = chat.say(text, lambda piece: print(piece, end="", flush=True))
    except KeyboardInterrupt:
        print("\n[interrupted]")
    except LaunchError as error:
        print(f"\nerror: {error}", file=sys.stderr)
    else:
        print(f"\n[{answer.figures}]")


def command(chat: ChatSession, text: str) -> None:
    """Obey one command; a mistake is a sentence. Raises EndOfChat."""
    name, _, args = text.partition(" ")
    obey = COMMANDS.get(name)
    try:
        print(f"[there is no {name}: /help lists the commands]" if obey is None else f"[{obey(chat, args.strip())}]")
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)


def set_system(chat: ChatSession, text: str) -> str:
    chat.system = text
    return "the system message is set" if text else "there is no system message"


def set_params(chat: ChatSession, text: str) -> str:
    """Set fields of the requests and return all of them. Raises ValueError."""
    params = {}
    # A value ends where the next name begins, so that it may hold spaces.
    for assignment in re.split(r"\s+(?=[a-z_]+=)", text) if text else ():
        name, sign, value = assignment.partition("=")
        if not sign or not re.fullmatch(r"[a-z_]{1,64}", name) or name in OWN:
            raise ValueError(f"write /params NAME=VALUE with the name of a request's field, not {assignment!r}")
        params[name] = value_of(value)
    chat.params.update(params)
    for name in [name for name, value in params.items() if value == ""]:
        del chat.params[name]
    return ", ".join(f"{name}={json.dumps(value)}" for name, value in chat.params.items()) or "no fields are set"


def value_of(text: str) -> object:
    """Return a value written as JSON, or else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def save(chat: ChatSession, text: str) -> str:
    """Write the conversation to a new file that only the user can read. Raises OSError, ValueError."""
    if not text:
        raise ValueError("write /save FILE")
    conversation = {"model": chat.model, "params": chat.params, "system": chat.system, "messages": chat.messages}
    descriptor = os.open(Path(text).expanduser(), os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        json.dump(conversation, file, ensure_ascii=False, indent=2)
    return f"saved to {text}"


def clear(chat: ChatSession, text: str) -> str:
    chat.messages.clear()
    return "all turns are forgotten"


def end(chat: ChatSession, text: str) -> str:
    raise EndOfChat


COMMANDS: dict[str, Callable[[ChatSession, str], str]] = {
    "/system": set_system,
    "/params": set_params,
    "/save": save,
    "/clear": clear,
    "/exit": end,
    "/quit": end,
    "/help": lambda chat, text: HELP,
}
