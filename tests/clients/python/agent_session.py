# SPDX-License-Identifier: Apache-2.0
"""A coding agent with one of the clients: in each step of its task it asks the model for a call of this tool, or for an
answer in words, and carries out the call in its folder. Prints a line of JSON when it asks, when an answer begins, and
when it has come.

    agent_session.py URL MODEL KEY CLIENT TASK"""

import json
import sys
from pathlib import Path
from typing import Any

from agent_clients import CLIENTS
from agent_tools import carry_out


def say(event: str, **facts: Any) -> None:
    print(json.dumps({"event": event} | facts), flush=True)


def main(url: str, model: str, key: str, name: str, task_file: str) -> None:
    task = json.loads(Path(task_file).read_text())
    client = CLIENTS[name](url, model, key, task)
    for tool in task["steps"]:
        say("asks", tool=tool)
        turn = client.ask(tool, lambda: say("begins"))
        calls = [{"name": call.name, "arguments": json.loads(call.arguments)} for call in turn.calls]
        say("told", text=turn.text, calls=calls, prompt=turn.prompt, completion=turn.completion)
        client.answer([(call, carry_out(call.name, call.arguments)) for call in turn.calls])


main(*sys.argv[1:6])
