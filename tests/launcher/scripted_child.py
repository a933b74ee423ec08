# SPDX-License-Identifier: Apache-2.0
"""A child with the real pipes, heartbeats and parent-death signal; the body of its role is a short script."""

import argparse
import ctypes
import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import app  # noqa: E402, F401
from pontil.launcher.child.fork.forked import serve_forks  # noqa: E402
from pontil.launcher.roles import Inheritance, die_with_group, run_child  # noqa: E402
from pontil.runtime.errors import IncompatiblePeer, ModelError, RankLost  # noqa: E402
from pontil.runtime.reporting import Reporter  # noqa: E402


def behave(config: dict[str, Any], reporter: Reporter, commands: int | None) -> None:
    """Obey the list of words in config["script"], then wait for ever."""
    for word in config["script"]:
        act(word, config, reporter, commands)
    threading.Event().wait()


def act(word: str, config: dict[str, Any], reporter: Reporter, commands: int | None) -> None:
    match word:
        case "ready":
            model = config["model"]
            reporter.ready(**({"paths": {model: model}} if config.get("name") == "prepare" else {"path": model}))
        case "digest of keys":
            told = {name: config[name] for name in ("callers", "admin", "allowances")}
            reporter.ready(told=hashlib.sha256(json.dumps(told).encode()).hexdigest())
        case "write to the listener":
            os.write(config["listeners"][0], b"handed")
        case "show keys":
            print("keys", config.get("keys"), flush=True)
        case "progress":
            reporter.progress("half of the weights")
        case "listen":
            listen(Path(config["trace"]), commands, reporter, config["routes"])
        case "ask when told":
            threading.Thread(target=ask_when_told, args=(Path(config["trace"]), reporter), daemon=True).start()
        case "obey":
            obey(Path(config["trace"] + ".orders"), config, reporter, commands)
        case "die with group":
            die_with_group()
        case "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        case "grandchild":
            print("grandchild", subprocess.Popen(["sleep", "1000"]).pid, flush=True)
        case _:
            trouble(word, config, reporter)


def trouble(word: str, config: dict[str, Any], reporter: Reporter) -> None:
    """Make the child wait, log a lot, or look busy or dead."""
    match word:
        case "wait for a proxy":
            reporter.progress("registering with the proxy", waits=True)
        case "go on when told":
            while not Path(config["trace"] + ".go").exists():
                threading.Event().wait(0.01)
        case "log much":
            threading.Thread(target=log_much, daemon=True).start()
        case "log much when told":
            threading.Thread(target=log_when_told, args=(Path(config["trace"]),), daemon=True).start()
        case "a heartbeat that fails":
            setattr(reporter, "last_step", None)  # noqa: B010
        case "say so":
            Path(config["trace"] + ".said").touch()
        case "work without a step":
            reporter.stepped(1, True)
        case _ if word.startswith("hold the lock"):
            hold_the_lock(float(word.split()[-1]))
        case _:
            end(word, config)


def hold_the_lock(seconds: float) -> None:
    """Compute in repeated C calls that hold Python's lock: no other thread runs."""
    sys.setswitchinterval(1e6)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pow(3, 400_000)
    sys.setswitchinterval(0.005)


def log_much() -> None:
    """Log at once far more than pipes hold."""
    for number in range(4000):
        logging.getLogger("pontil.noise").info("%d %s", number, "x" * 1000)
    logging.getLogger("pontil.noise").info("all is said")


def log_when_told(trace: Path) -> None:
    """Log once the file `trace`.go exists; then create `trace`.said."""
    while not Path(f"{trace}.go").exists():
        threading.Event().wait(0.01)
    log_much()
    Path(f"{trace}.said").touch()


def end(word: str, config: dict[str, Any]) -> None:
    """End in the way that the word names."""
    match word:
        case "end":
            sys.exit(0)
        case "crash":
            print("about to crash", flush=True)
            sys.exit(3)
        case "crash after the first life":
            running = Path(config["trace"] + ".life")
            if running.exists():
                sys.exit(3)
            running.touch()
        case "fail":
            raise ModelError("there is no such model")
        case "lose a rank":
            while not Path(config["trace"] + ".lost").exists():
                threading.Event().wait(0.01)
            raise RankLost("a rank is gone")
        case "be lost":
            Path(config["trace"] + ".lost").touch()
        case "refused":
            raise IncompatiblePeer("the proxy refused this worker: another dtype")
        case "bug":
            raise ValueError("a bug")
        case "close the pipe":
            os.close(int(next(word for word in sys.argv if "--report-fd" in word).split("=")[1]))
        case _:
            end_violently(word)


def end_violently(word: str) -> None:
    match word:
        case "segfault":
            touch_nothing()
        case "abort":
            os.abort()
        case "gpu fault":
            raise RuntimeError("CUDA error: an illegal memory access was encountered\nSearch for it in the manual.")
        case "gpu fault in a destructor":
            print("terminate called\n  what():  CUDA error: unspecified launch failure", file=sys.stderr, flush=True)
            os.abort()
        case "eat memory":
            eaten = []
            while True:
                eaten.append(b"x" * (16 << 20))


def touch_nothing() -> None:
    ctypes.string_at(0)


def listen(trace: Path, commands: int | None, reporter: Reporter, routes: "dict[str, Any] | None") -> None:
    """Act as a proxy: write down each command, answer a self-test with the entry of `routes` for its number, end on
    drain."""
    assert commands is not None
    with os.fdopen(commands) as pipe, trace.open("a") as notes:
        for line in pipe:
            notes.write(line)
            notes.flush()
            command = json.loads(line)
            if command["kind"] == "drain":
                sys.exit(0)
            if command["kind"] == "self_test" and routes and str(command["number"]) in routes:
                reporter.tested(command["number"], routes[str(command["number"])])


def ask_when_told(trace: Path, reporter: Reporter) -> None:
    """Act as a proxy whose page is used: ask for the change in the file `trace`.ask-1, then for that in the next."""
    number = 1
    while True:
        told = Path(f"{trace}.ask-{number}")
        if told.exists():
            reporter.asked(number, json.loads(told.read_text()))
            number += 1
        threading.Event().wait(0.01)


def obey(trace: Path, config: dict[str, Any], reporter: Reporter, commands: int | None) -> None:
    """Act as a worker without requests: write down each order, and carry it out. With "busy" it never finishes
    draining."""
    assert commands is not None
    with os.fdopen(commands) as pipe, trace.open("a") as notes:
        for line in pipe:
            order = json.loads(line)
            notes.write(json.dumps({"name": config["name"], **order}) + "\n")
            notes.flush()
            if order["kind"] == "role" and not (order["drain"] is not None and "busy" in config["script"]):
                reporter.settled(order["order"], order["drain"] is not None)


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    for name in ("parent", "config-fd", "report-fd", "commands-fd", "requests-fd"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--room")
    told = parser.parse_args(words)
    if told.name == "fork-server":
        forked = serve_forks(told.parent, told.requests_fd)
        sys.argv[1:] = forked or ()
        return 0 if forked is None else main(forked)
    inherited = Inheritance(told.parent, told.config_fd, told.report_fd, told.commands_fd)
    return run_child(inherited, dict.fromkeys(("prepare", "proxy", "prefill", "decode", "mixed"), behave))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
