# SPDX-License-Identifier: Apache-2.0
"""Wait until a server is ready, ask it one question, and print the answer, its usage and its duration.

    python scripts/ask.py URL PID [QUESTION]

Without a question it only waits. PID is the launcher's: when it ends before the server is ready, so does the waiting.
The first key in PONTIL_API_KEYS is sent to the server. Standard library only.
"""

import http.client
import json
import sys
import time
from typing import Any
from urllib.parse import urlsplit

from own_key import key_headers

POLL = 0.2
TIMEOUT = 120.0


def is_ready(address: str) -> bool:
    """Return whether every worker takes requests; the server would answer as soon as the first one does."""
    try:
        processes = json.loads(get(address, "/admin/topology"))["processes"]
        workers = [each for each in processes if each["role"] != "proxy" and each["state"] != "GIVEN_UP"]
        return bool(workers and get(address, "/ready")) and all("load" in each for each in workers)
    except (OSError, http.client.HTTPException):
        return False


def get(address: str, path: str) -> bytes:
    """Return the body; raises HTTPException unless the status is 200."""
    connection = http.client.HTTPConnection(address, timeout=2)
    connection.request("GET", path)
    response = connection.getresponse()
    if response.status != 200:
        raise http.client.HTTPException(response.status)
    return response.read()


def is_alive(pid: int) -> bool:
    """Return whether the process runs; a zombie does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until_ready(address: str, pid: int) -> None:
    while not is_ready(address):
        if not is_alive(pid):
            sys.exit("The launch ended before it was ready: its last message above says why.")
        time.sleep(POLL)


def ask(address: str, method: str, path: str, body: Any = None) -> tuple[dict[str, Any], str]:
    """Return the reply and the route that it took through the workers."""
    connection = http.client.HTTPConnection(address, timeout=TIMEOUT)
    headers = {"Content-Type": "application/json", **key_headers()}
    connection.request(method, path, json.dumps(body) if body else None, headers)
    response = connection.getresponse()
    reply = json.loads(response.read())
    if response.status != 200:
        sys.exit(f"The server answered {response.status}: {reply.get('error', {}).get('message', reply)}")
    return reply, response.getheader("x-pontil-route") or "unknown"


def main() -> None:
    url, pid, questions = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    address = urlsplit(url).netloc
    wait_until_ready(address, pid)
    for question in questions:
        put(url, address, question)


def put(url: str, address: str, question: str) -> None:
    """Ask a question, and print what came."""
    model = ask(address, "GET", "/v1/models")[0]["data"][0]["id"]
    started = time.monotonic()
    body = {"model": model, "messages": [{"role": "user", "content": question}], "max_tokens": 64, "temperature": 0}
    reply, route = ask(address, "POST", "/v1/chat/completions", body)
    usage, message = reply["usage"], reply["choices"][0]["message"]
    print(f"""
Question:   {question}
Answer:     {message["content"] or message.get("reasoning_content")}
Usage:      {usage["prompt_tokens"]} prompt + {usage["completion_tokens"]} completion tokens
Served by:  {route}
Took:       {time.monotonic() - started:.2f} s
Clients:    base_url {url}/v1, model {model}, {"a key of PONTIL_API_KEYS" if key_headers() else "any API key"}
""")


if __name__ == "__main__":
    main()
