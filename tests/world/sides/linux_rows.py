# SPDX-License-Identifier: Apache-2.0
"""Scenarios of processes, files, pipes and memory: what they leave behind, and who sees it when."""

import signal

from link_rows import QUIET, Pair, came
from scenario import Facts, Scenario
from side import Side

GONE = "the peer's memory cannot be opened (No such process): is it on this host?"


def event_descriptor(side: Side) -> Facts:
    process = side.start()
    number = process.do("make_event")
    facts = {
        "empty": process.do("read_event"),
        "written": [process.do("write_event", 2), process.do("write_event", 3)],
        "read": [process.do("read_event"), process.do("read_event")],
        "closed": process.do("close_event"),
        "after": [process.do("write_event", 1), process.do("read_event")],
    }
    return facts | {"its number is given again": process.do("make_event") == number}


def pipes(side: Side) -> Facts:
    (reads, writes), facts = side.pipe(), Facts()
    writer, reader = side.start([writes]), side.start([reads])
    side.drop(reads, writes)
    writer.do("write_pipe", writer.number(writes), "one\ntwo\n")
    facts["lines"] = reader.do("read_pipe", reader.number(reads))
    writer.do("write_pipe", writer.number(writes), "three\nfo")
    writer.stop()
    facts["its writer is stopped"] = reader.do("read_pipe", reader.number(reads))
    writer.kill()
    facts["its writer is dead"] = reader.do("read_pipe", reader.number(reads))
    reads, writes = side.pipe()
    writer, reader = side.start([writes]), side.start([reads])
    side.drop(reads, writes)
    reader.kill()
    facts["its reader is dead"] = writer.do("write_pipe", writer.number(writes), "one\n")
    return facts


def lock_of_a_file(side: Side) -> Facts:
    owner, other, path = side.start(), side.start(), f"{side.folder}/lock"
    facts = {"taken": owner.do("take_lock", path), "by another": other.do("take_lock", path)}
    owner.stop()
    facts["its owner is stopped"] = other.do("take_lock", path)
    owner.kill()
    return facts | {"its owner is dead": other.do("take_lock", path)}


def killed_writer_of_the_log(side: Side) -> Facts:
    writer, other, path = side.start(), side.start(), f"{side.folder}/usage"
    writer.do("open_log", path)
    writer.do("write_log", "a", "b")
    writer.do("begin_writing", "what nobody sees")
    facts = {"read meanwhile": other.do("read_log", path)}
    facts["opened meanwhile"] = "another proxy writes to the usage log" in other.do("open_log", path)
    writer.kill()
    facts["files"] = sorted(file.name for file in side.folder.iterdir())
    return facts | {"read after": other.do("read_log", path), "opened after": other.do("open_log", path)}


def memory_of_a_peer(side: Side) -> Facts:
    owner, peer = side.start(), side.start()
    owner.do("make_pool", 4)
    described = owner.do("describe_pool")
    facts = {"mapped": peer.do("map_peer", described)}
    owner.do("set_epoch", 7)
    facts["written"] = peer.do("read_epoch")
    owner.stop()
    facts["its owner is stopped"] = [peer.do("peer_has_ended"), peer.do("map_peer", described), peer.do("read_epoch")]
    owner.kill()
    facts["its owner is dead"] = [peer.do("peer_has_ended"), peer.do("read_epoch")]
    return facts | {"mapped anew": peer.do("map_peer", described)}


def parts_of_a_pull(side: Side) -> Facts:
    owner, peer = side.start(), side.start()
    owner.do("make_pool", 4)
    peer.do("make_pool", 4)
    peer.do("map_peer", owner.do("describe_pool"))
    return {"moments at which it reads two blocks": peer.do("moments_of_a_pull")}


def computation(side: Side) -> Facts:
    """Write into memory after a computation, then send: what is seen in its middle?"""
    pair, until = Pair(side), f"{side.folder}/until"
    pair.client.do("make_pool", 4)
    pair.server.do("map_peer", pair.client.do("describe_pool"))
    before = pair.server.do("read_epoch")
    pair.client.ask("compute_and_tell", until, "d", before + 1)
    side.rest(QUIET)
    written, sent = pair.server.do("read_epoch") - before, pair.server.do("receive", "r")
    side.end_computation(until)
    pair.client.answer()
    told = came(side, pair.server, "r", 1)
    return {"written": written, "sent": sent, "told": told, "at last": pair.server.do("read_epoch") - before}


def stopped_computation(side: Side) -> Facts:
    """Stop a process in the middle of a computation. It goes on when it runs again, and never if it dies before."""
    facts = Facts()
    for then in ("resumed", "killed"):
        pair, until = Pair(side), f"{side.folder}/until-{then}"
        pair.client.do("make_pool", 4)
        pair.client.ask("compute_and_tell", until, "d", 1000)
        side.rest(QUIET)
        pair.client.stop()
        side.end_computation(until)
        side.rest(QUIET)
        facts[f"before it is {then}"] = pair.server.do("receive", "r")
        if then == "killed":
            pair.client.kill()
        pair.client.resume()
        side.end_computation(until)
        side.rest(QUIET)
        facts[then] = came(side, pair.server, "r", 1) if then == "resumed" else pair.server.do("receive", "r")
    return facts


def signals(side: Side) -> Facts:
    one, other = side.start(), side.start()
    one.stop()
    other.stop()
    one.signal(signal.SIGTERM)
    side.rest(QUIET)
    waits = not one.has_gone()
    one.resume()
    facts = {"SIGTERM waits until it runs": waits, "and ends it then": side.until(one.has_gone)}
    other.signal(signal.SIGKILL)
    return facts | {"SIGKILL does not wait": side.until(other.has_gone)}


def supervision(side: Side) -> Facts:
    reads, writes = side.pipe()
    process = side.start([writes])
    facts = {
        f"{kind} wakes the supervisor": side.wakes(process, writes, reads, kind) for kind in ("ready", "heartbeat")
    }
    side.drop(reads, writes)
    return facts | {"the use of the CPU is known": process.shows_its_use()}


SCENARIOS = (
    Scenario("event-descriptor", event_descriptor, {
        "empty": "EAGAIN", "written": ["done", "done"], "read": [5, "EAGAIN"], "closed": "done",
        "after": ["EBADF", "EBADF"], "its number is given again": True,
    }, {"its number is given again": False}),
    Scenario("pipes", pipes, {
        "lines": [["one", "two"], False], "its writer is stopped": [["three"], False],
        "its writer is dead": [[], True], "its reader is dead": "EPIPE",
    }),
    Scenario("lock-of-a-file", lock_of_a_file, {
        "taken": "done", "by another": "EAGAIN", "its owner is stopped": "EAGAIN", "its owner is dead": "done",
    }),
    Scenario("killed-writer-of-the-log", killed_writer_of_the_log, {
        "read meanwhile": [["a", None], ["b", None]], "opened meanwhile": True,
        "files": ["usage", "usage-shm", "usage-wal"], "read after": [["a", None], ["b", None]], "opened after": "done",
    }, {"files": ["usage"]}),
    Scenario("memory-of-a-peer", memory_of_a_peer, {
        "mapped": "done", "written": 7, "its owner is stopped": [False, "done", 7], "its owner is dead": [True, 7],
        "mapped anew": GONE,
    }),
    Scenario("parts-of-a-pull", parts_of_a_pull, {"moments at which it reads two blocks": 2}, {
        "moments at which it reads two blocks": 1,
    }),
    Scenario("computation", computation, {
        "written": 0, "sent": [], "told": [["w", "computed"]], "at last": 1,
    }, {"written": 1}),
    Scenario("stopped-computation", stopped_computation, {
        "before it is resumed": [], "resumed": [["w", "computed"]], "before it is killed": [], "killed": [],
    }),
    Scenario("signals", signals, {
        "SIGTERM waits until it runs": True, "and ends it then": True, "SIGKILL does not wait": True,
    }),
    Scenario("supervision", supervision, {
        "ready wakes the supervisor": True, "heartbeat wakes the supervisor": True, "the use of the CPU is known": True,
    }, {"heartbeat wakes the supervisor": False, "the use of the CPU is known": False}),
)  # fmt: skip
