# SPDX-License-Identifier: Apache-2.0
"""Ask a server a question that is recorded in a WAV file, and write the spoken answer to another.

    python scripts/ask_aloud.py URL QUESTION.wav ANSWER.wav

Prints the answer's text too. The first key in PONTIL_API_KEYS is sent to the server. Standard library only.
"""

import base64
import json
import sys
import urllib.error
import urllib.request
from pathlib import Path

from own_key import key_headers

TIMEOUT = 120.0


def spoken_answer(url: str, recording: bytes) -> tuple[bytes, str]:
    """Return the answer's WAV file and its text. Raises HTTPError for a refusal."""
    heard = {"type": "input_audio", "input_audio": {"format": "wav", "data": base64.b64encode(recording).decode()}}
    body = {"modalities": ["text", "audio"], "messages": [{"role": "user", "content": [heard]}]}
    headers = {"Content-Type": "application/json", **key_headers()}
    asked = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(asked, timeout=TIMEOUT) as reply:
        audio = json.load(reply)["choices"][0]["message"]["audio"]
    return base64.b64decode(audio["data"]), audio["transcript"]


def main() -> None:
    url, question, answer = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    try:
        sound, text = spoken_answer(url.rstrip("/"), question.read_bytes())
    except urllib.error.HTTPError as error:
        sys.exit(f"The server answered {error.code}: {json.load(error)['error']['message']}")
    answer.write_bytes(sound)
    print(text)


if __name__ == "__main__":
    main()
