# SPDX-License-Identifier: Apache-2.0
"""The proxy process as a program: its configuration in argv, reports as JSON lines, commands on stdin."""

import json
import sys
from typing import Any

import app  # noqa: F401


class LineReporter:
    """Reporter that prints what a supervisor would receive."""

    def say(self, kind: str, value: Any) -> None:
        print(json.dumps([kind, value]), flush=True)

    def progress(self, text: str, *, waits: bool = False) -> None:
        self.say("progress", text)

    def ready(self, **facts: Any) -> None:
        self.say("ready", facts)

    def tested(self, number: int, routes: Any) -> None:
        self.say("tested", [number, list(routes)])

    def failed(self, reason: str) -> None:
        self.say("failed", reason)

    def settled(self, order: int, drained: bool) -> None:
        pass

    def asked(self, number: int, request: Any) -> None:
        self.say("asked", [number, request])

    def used(self, models: Any) -> None:
        self.say("used", models)

    def stepped(self, number: int, working: bool) -> None:
        pass


def main() -> None:
    from pontil.http.server.service import run_proxy
    from pontil.runtime.config.proxy_config import proxy_config
    from pontil.runtime.errors import PontilError

    reporter = LineReporter()
    try:
        run_proxy(proxy_config(json.loads(sys.argv[1])), reporter, sys.stdin.fileno())
    except PontilError as error:
        reporter.failed(str(error))
        sys.exit(1)
    reporter.say("heavy", sorted({"torch", "numpy", "transformers"} & sys.modules.keys()))


if __name__ == "__main__":
    main()
