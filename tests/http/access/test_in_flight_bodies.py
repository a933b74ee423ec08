# SPDX-License-Identifier: Apache-2.0
"""A body that was being read when two proxies died is refused to its sender for a while, and no other; one death has
nothing refused."""

import json
import os
import subprocess
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
from hostile_grammars import by_regex
from running_proxy import DEADLINE, ask, heard, proxy
from scripted_site import site
from scripted_worker import eventually, silent

from pontil.http.access.in_flight_bodies import CODE, REFUSED_SECONDS, SLOT, SLOTS, InFlightBodies
from pontil.runtime.errors import RequestError
from pontil.runtime.tokenizer.tokenizer import Tokenizer

BODY, OTHER, PEER = b'{"prompt": "hi"}', b'{"prompt": "ho"}', "127.0.0.1"


def life(path: Path, now: float) -> InFlightBodies:
    """Open the file as a process that later crashes without closing it."""
    return InFlightBodies(path, lambda: now)


def refuses(bodies: InFlightBodies, body: bytes, peer: str = PEER) -> bool:
    try:
        bodies.clear(bodies.take(body, peer))
    except RequestError as refused:
        assert refused.status == 400 and refused.code == CODE
        return True
    return False


def killed(path: Path, now: float, *bodies: bytes, peer: str = PEER) -> InFlightBodies:
    """Open the file as a process that is killed while it reads these bodies; each may be read."""
    made = life(path, now)
    for body in bodies:
        made.take(body, peer)
    return made


def test_one_death_has_no_innocent_body_refused(tmp_path: Path) -> None:
    path = tmp_path / "in-hand"
    killed(path, 1000.0, BODY, OTHER)
    assert not refuses(life(path, 1001.0), BODY) and not refuses(life(path, 1001.0), OTHER)


def test_what_was_in_hand_at_two_deaths_is_refused_for_a_while(tmp_path: Path) -> None:
    path = tmp_path / "in-hand"
    killed(path, 1000.0, BODY)
    killed(path, 1050.0, BODY, BODY)
    second = life(path, 1100.0)
    assert refuses(second, BODY) and not refuses(second, OTHER) and not refuses(second, BODY, "::1")
    assert refuses(killed(path, 1200.0, OTHER), BODY), "another death forgets nothing"
    assert refuses(life(path, 1100.0 + REFUSED_SECONDS - 1), BODY)
    assert not refuses(life(path, 1100.0 + REFUSED_SECONDS + 1), BODY)
    assert path.stat().st_size == SLOTS * SLOT.size and path.stat().st_mode & 0o777 == 0o600


def test_a_body_that_is_read_after_a_death_is_suspected_no_more(tmp_path: Path) -> None:
    path = tmp_path / "in-hand"
    killed(path, 1000.0, BODY)
    between = life(path, 1001.0)
    between.clear(between.take(BODY, PEER))
    between.take(BODY, PEER)
    assert not refuses(life(path, 1002.0), BODY), "this is its first death again"


def test_a_suspicion_is_forgotten_in_time(tmp_path: Path) -> None:
    path = tmp_path / "in-hand"
    killed(path, 1000.0, BODY)
    life(path, 1000.0)
    killed(path, 1001.0 + REFUSED_SECONDS, BODY)
    assert not refuses(life(path, 1002.0 + REFUSED_SECONDS), BODY)


def test_a_refusal_ends_while_the_process_goes_on(tmp_path: Path) -> None:
    now = 5.0
    killed(tmp_path / "in-hand", now, BODY)
    killed(tmp_path / "in-hand", now, BODY)
    bodies = InFlightBodies(tmp_path / "in-hand", lambda: now)
    with pytest.raises(RequestError, match="change it, or wait 600 s"):
        bodies.take(BODY, PEER)
    now += REFUSED_SECONDS
    assert not refuses(bodies, BODY)


def test_an_orderly_end_leaves_nothing(tmp_path: Path) -> None:
    bodies = life(tmp_path / "in-hand", 1.0)
    name = bodies.take(BODY, PEER)
    bodies.close()
    bodies.clear(name)
    assert not refuses(life(tmp_path / "in-hand", 2.0), BODY)


def test_every_slot_comes_back_and_more_bodies_than_slots_are_taken(tmp_path: Path) -> None:
    """Each slot is free, in flight or a suspect's."""
    bodies = life(tmp_path / "in-hand", 1.0)
    names = [bodies.take(str(number).encode(), PEER) for number in range(SLOTS + 5)]
    assert not bodies.free and len(bodies.held) == SLOTS
    for name in names * 2:
        bodies.clear(name)
    assert sorted(bodies.free) == list(range(SLOTS)) and not bodies.held
    for number in range(SLOTS):
        bodies.take(str(number).encode(), PEER)
    following = life(tmp_path / "in-hand", 2.0)
    assert len(following.suspects) + len(following.free) == SLOTS and len(following.free) == SLOTS // 2
    for number in range(SLOTS):
        following.clear(following.take(str(number).encode(), PEER))
    assert sorted(following.free) == list(range(SLOTS)) and not following.suspects and not following.places


@pytest.mark.parametrize("data", [b"", b"\xff" * 33, b"\xff" * SLOTS * SLOT.size, os.urandom(3000), b"\0" * 10**6])
def test_a_file_of_anything_is_no_obstacle(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "in-hand").write_bytes(data)
    assert not refuses(life(tmp_path / "in-hand", 1.0), BODY)


def test_without_a_file_nothing_is_noted(tmp_path: Path) -> None:
    for bodies in (InFlightBodies(None), InFlightBodies(tmp_path / "no" / "folder")):
        assert not refuses(bodies, BODY) and not bodies.held


@pytest.mark.long
def test_two_deaths_in_the_middle_of_reading(tmp_path: Path, tokenizer_folder: Path) -> None:
    """Crashes of any kind. Only the byte-identical body is refused, and after the second one; all else is served."""
    path, body = str(tmp_path / "in-hand"), by_regex("a+")
    for _ in range(2):
        die_while_reading(tmp_path, tokenizer_folder, body)
    with proxy(tmp_path, tokenizer_folder, in_flight_bodies=path) as process:
        address = heard(process, "ready")["url"]
        answer = ask(address, body)
        assert answer.status == 400 and answer.json["error"]["code"] == CODE
        assert ask(address, by_regex("b+")).status == 503 and ask(address, by_regex("a*")).status == 503
        process.terminate()
        process.wait(DEADLINE)
        assert process.stderr is not None and "1 bodies were being read" in process.stderr.read()


def die_while_reading(folder: Path, tokenizer_folder: Path, body: dict[str, Any]) -> None:
    with proxy(folder, tokenizer_folder, in_flight_bodies=str(folder / "in-hand")) as process:
        address = heard(process, "ready")["url"]
        assert ask(address, by_regex("b+")).status == 503
        (checker,) = psutil.Process(process.pid).children()
        checker.suspend()
        killer = threading.Thread(target=kill_when_noted, args=(process, folder / "in-hand"))
        killer.start()
        with pytest.raises(OSError):
            ask(address, body)
        killer.join(DEADLINE)


def noted(path: Path) -> bool:
    """Return whether a body is in flight: a suspect's slot has a time."""
    slots = SLOT.iter_unpack(path.read_bytes())
    return any(digest.strip(b"\0") and until == 0.0 for until, _, digest in slots)


def kill_when_noted(process: "subprocess.Popen[str]", path: Path) -> None:
    eventually(lambda: noted(path), "the note")
    process.kill()
    process.wait(DEADLINE)


def test_what_has_been_read_is_not_in_hand(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """A crash while streaming is not the body's fault, so its client may retry at once."""
    path = tmp_path / "in-hand"
    with site(tmp_path, tokenizer, in_flight_bodies=str(path)) as made:
        worker, connection = made.worker(script=silent), made.connect()
        connection.request("POST", "/v1/completions", json.dumps({"prompt": "a", "stream": True}))
        worker.submits.get(timeout=DEADLINE)
        eventually(lambda: not noted(path))
        assert made.ask("POST", "/v1/completions", b"{").status == 400 and not noted(path)
        assert made.ask("POST", "/tokenize", {"prompt": "a"}).status == 200 and not noted(path)
        connection.close()
