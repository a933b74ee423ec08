# SPDX-License-Identifier: Apache-2.0
"""The promises about answers to recordings and images, checked at a real launch."""

import base64
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from click.testing import CliRunner, Result
from media_questions import QUESTIONS, TOKENS, ShownQuestion, ask, picture
from served import Served, wait_for

from pontil.launcher.cli import cli
from pontil.runtime.receipts.statement import Receipt

if TYPE_CHECKING:
    from tiny_omni import OmniPair

ASKED = {"pontil-receipt": "1"}


def with_receipt(served: Served, question: ShownQuestion, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": question.content()}]
    body = {"messages": messages, "max_tokens": TOKENS, "temperature": 0.8, "seed": 3} | fields
    reply = served.request("POST", "/v1/chat/completions", body, ASKED)
    assert reply.status == 200, reply.text()
    answer: dict[str, Any] = reply.json()
    return answer


def verified(path: Path, answer: Path, *words: str) -> Result:
    return CliRunner().invoke(cli, ["verify", str(answer), "--model", str(path), *words], standalone_mode=False)


def check_receipts(served: Served, pair: "OmniPair", folder: Path) -> None:
    """Check that a receipt states what was shown, and holds with these files alone; one about a text needs none."""
    question = QUESTIONS["both"]
    answer = with_receipt(served, question, n=2)
    receipts = [Receipt.from_json(one) for one in answer["receipt"]]
    media = receipts[0].media
    assert [one["kind"] for one in media] == ["image", "audio", "image", "audio"] and receipts[1].media == media
    assert answer["choices"] == ask(served, question, n=2, temperature=0.8, seed=3)["choices"]
    (folder / "answer").write_text(json.dumps(answer))
    words = list[str]()
    for number, part in enumerate(part for part in question.parts if isinstance(part, bytes)):
        (folder / str(number)).write_bytes(part)
        words += ["--media", str(folder / str(number))]
    made = verified(pair.path, folder / "answer", "--batch", "2", *words)
    assert made.return_value == 0 and made.output.count("tokens and logits are equal") == 2, (made, made.output)
    swapped = verified(pair.path, folder / "answer", *words[4:6], *words[2:4], *words[:2], *words[6:])
    assert swapped.return_value == 1 and f"{folder}/2 is not the image that the receipt states" in swapped.output
    missing = verified(pair.path, folder / "answer", *words[2:])
    assert "has 4 recordings and images, and here are 3: give the file of each" in str(missing.exception)
    plain = with_receipt(served, ShownQuestion(("hello",)))
    assert "media" not in plain["receipt"]["statement"]
    (folder / "plain").write_text(json.dumps(plain))
    assert verified(pair.path, folder / "plain").return_value == 0
    needless = verified(pair.path, folder / "plain", *words[:2])
    assert "its prompt has no recordings and no images: leave out --media" in str(needless.exception)
    (folder / "config.json").write_text("{}")
    blind = verified(folder, folder / "answer", *words)
    assert blind.return_value != 0 and blind.exception is not None and str(blind.exception).endswith(".")


SALTED = {"cache_salt": "leased"}


def leased(served: Served, content: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": content}], "ttl": "1h", **SALTED}
    reply = served.request("POST", "/v1/prefixes", body)
    assert reply.status == 200, reply.text()
    lease: dict[str, Any] = reply.json()
    return lease


def found(answer: dict[str, Any]) -> int:
    count: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return count


def check_leases(served: Served) -> None:
    """Check that a prefix with recordings and images is leased as one of text is, found by chats that begin so alone,
    and marked by blocks."""
    question = QUESTIONS["both"]
    lease = leased(served, question.content())
    assert lease["state"] == "held" and lease["usage"]["prompt_tokens"] - 16 < lease["tokens"]
    messages = [{"role": "user", "content": question.content()}, {"role": "assistant", "content": "yes"}]
    turn = {"messages": [*messages, {"role": "user", "content": "why?"}], "max_tokens": TOKENS, "temperature": 0}
    told, whole = (
        served.request("POST", "/v1/chat/completions", turn | {"cache_salt": salt}).json() for salt in ("leased", "-")
    )
    assert (found(told) >= lease["tokens"], found(whole)) == (True, 0) and told["choices"] == whole["choices"]
    other = ShownQuestion((*question.parts[:1], picture(96, 64), *question.parts[2:]))
    assert found(ask(served, other, **SALTED)) < 16 * 2
    again = ask(served, question, prompt_cache_retention="24h", **SALTED)
    assert found(again) >= lease["tokens"]
    for row in served.get("/v1/prefixes")["data"]:
        assert served.request("DELETE", f"/v1/prefixes/{row['id']}").status == 200


def check_lease_after_a_death(served: Served) -> None:
    """Check that the next process of a worker has the prefix again, and finds it."""
    question = QUESTIONS["images"]
    lease, victim = leased(served, question.content()), served.living("prefill:0")
    victim.kill()
    served.living("prefill:0", after=victim.pid)
    wait_for(lambda: served.get(f"/v1/prefixes/{lease['id']}")["state"] == "held", 60, "the lease at its worker")
    assert found(ask(served, question, **SALTED)) >= lease["tokens"]
    assert served.request("DELETE", f"/v1/prefixes/{lease['id']}").status == 200


def check_marks(served: Served) -> None:
    """Check that a mark on a block leases the prompt up to there: an image is in it, and what follows is not."""
    one, two = (block(picture(96, 96)) for _ in range(2))
    marked = one | {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    for number, before in enumerate(([], [two], [{"type": "text", "text": "and " * 9}])):
        turn = {"role": "user", "content": [*before, marked, two, {"type": "text", "text": f"{number}?"}]}
        body = {"messages": [turn], "max_tokens": 2, "temperature": 0}
        reply = served.request("POST", "/v1/messages", body)
        assert reply.status == 200 and str(reply.header("x-pontil-lease")).startswith("cache-"), reply.text()
        whole = served.request(
            "POST", "/v1/messages/count_tokens", {"messages": [{"role": "user", "content": [*before, one]}]}
        )
        lease = served.get(f"/v1/prefixes/{reply.header('x-pontil-lease')}")
        assert 0 <= whole.json()["input_tokens"] - lease["tokens"] < 16 * 2, (whole.json(), lease)
        assert served.request("DELETE", f"/v1/prefixes/{lease['id']}").status == 200


def block(data: bytes) -> dict[str, Any]:
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(data).decode()}
    return {"type": "image", "source": source}
