# SPDX-License-Identifier: Apache-2.0
"""Files and batches of a scripted site, asked for and read as a client does."""

import json
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

from jsonschema import validate
from scripted_site import MODEL, HttpAnswer, ScriptedSite
from scripted_worker import eventually

from pontil.http.batch import schema
from pontil.runtime.accounting.audit import audit
from pontil.runtime.accounting.usage_file import open_to_read

CHAT = "/v1/chat/completions"


def line(name: Any, content: str = "hi", url: str = CHAT, **fields: Any) -> dict[str, Any]:
    body = {"model": MODEL, "messages": [{"role": "user", "content": content}]} | fields
    return {"custom_id": name, "method": "POST", "url": url, "body": body}


def upload(made: ScriptedSite, lines: list[Any], purpose: str = "batch", name: str = "in.jsonl") -> HttpAnswer:
    data = b"".join(one if isinstance(one, bytes) else json.dumps(one).encode() + b"\n" for one in lines)
    body = (
        (
            f'--xx\r\ncontent-disposition: form-data; name="purpose"\r\n\r\n{purpose}\r\n'
            f'--xx\r\ncontent-disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
        ).encode()
        + data
        + b"\r\n--xx--\r\n"
    )
    return made.ask("POST", "/v1/files", body, {"content-type": "multipart/form-data; boundary=xx"})


def begun(made: ScriptedSite, lines: list[Any], **fields: Any) -> dict[str, Any]:
    file = upload(made, lines)
    assert file.status == 200, file.body
    validate(file.json, schema.FILE)
    asked = {"input_file_id": file.json["id"], "endpoint": CHAT, "completion_window": "24h"} | fields
    answer = made.ask("POST", "/v1/batches", asked)
    assert answer.status == 200, answer.body
    validate(answer.json, schema.BATCH)
    return dict(answer.json)


def shown(made: ScriptedSite, batch: dict[str, Any]) -> dict[str, Any]:
    return dict(made.ask("GET", f"/v1/batches/{batch['id']}").json)


def ended(made: ScriptedSite, batch: dict[str, Any]) -> dict[str, Any]:
    eventually(lambda: shown(made, batch)["status"] not in ("in_progress", "cancelling"), "the batch's end")
    over = shown(made, batch)
    validate(over, schema.BATCH)
    return over


def told(made: ScriptedSite, file: str | None) -> dict[str | None, Any]:
    if file is None:
        return {}
    answer = made.ask("GET", f"/v1/files/{file}/content")
    assert answer.status == 200, answer.body
    lines = [json.loads(one) for one in answer.body.splitlines()]
    assert len({one["id"] for one in lines}) == len(lines)
    return {one["custom_id"]: one for one in lines}


def bills(made: ScriptedSite, batch: str) -> dict[str, int]:
    """Return the number of billed rows of each line."""
    with closing(open_to_read(Path(str(made.proxy.config.usage_log)))) as log:
        # The work of workers is written a moment after that of requests.
        eventually(lambda: all(finding.equal for finding in audit(log)), "an equal audit")
        rows = log.execute("SELECT name FROM requests WHERE instr(name, ?) = 1 AND delivered > 0", (batch,)).fetchall()
    return dict(Counter(name for (name,) in rows))
