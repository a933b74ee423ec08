# SPDX-License-Identifier: Apache-2.0
"""Processes that lend a pool over NIXL, or read one: large enough that reading it takes a good part of a second over
TCP. `python nixl_process.py own HOST` prints its descriptor and waits for the end of its input. `python nixl_process.py
pull HOST` reads a descriptor from its input, prints a line when a part has arrived, and the error of its pull when that
has ended."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
BLOCKS = 800


class NixlProcess:
    """One of these processes, in front of whose command line stand the words `inside`."""

    def __init__(self, task: str, host: str = "127.0.0.1", inside: Sequence[str] = ()) -> None:
        path = os.pathsep.join([str(ROOT), *map(str, sorted((ROOT / "tests" / "support").iterdir()))])
        self.process = subprocess.Popen(
            [*inside, sys.executable, __file__, task, host], env={**os.environ, "PYTHONPATH": path, "UCX_TLS": "tcp"},
            text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def tell(self, told: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(told) + "\n")
        self.process.stdin.flush()

    def hear(self) -> Any:
        """Return what the process prints next. One that ends without a word raises ValueError."""
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


def main(task: str, host: str) -> None:
    import_module("app")  # makes the packages known that the others import
    from pools import Pool, wait_for

    from pontil.runtime.cache.layout import KVLayout
    from pontil.runtime.transfer.connector import ConnectorOptions
    from pontil.runtime.transfer.nixl.connector import NixlConnector

    pool = Pool(partial(NixlConnector, options=ConnectorOptions(host)), BLOCKS, KVLayout(16, 30, 3, 64, "bfloat16"))
    if task == "own":
        pool.storage.own[:] = 7
        print(json.dumps(pool.connector.register()), flush=True)
        sys.stdin.read()
        return
    pool.connector.attach("peer", json.loads(sys.stdin.readline()))
    pull = pool.pull("peer", [(block, block) for block in range(1, BLOCKS)], 0)
    wait_for(lambda: pull.received > 0)
    print(json.dumps("a part"), flush=True)
    begun = time.monotonic()
    (done,) = pool.finish(pull)
    print(json.dumps([done.error, time.monotonic() - begun]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
