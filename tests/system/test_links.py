# SPDX-License-Identifier: Apache-2.0
"""Links between three hosts that are cut without a word, in one direction or both: others serve, and go on with it once
it is back. The table in docs/operate/hosts.md is written by this test, where pytest is told so."""

import json
import re
import threading
import time
from collections.abc import Iterator
from itertools import count

import pytest
from link_table import WRITE, CutOutcome, write_page
from network_hosts import CONTROL, FAR, NAMES, Hosts
from served import START_TIMEOUT, wait_for

# A request that nobody answers is given up before the proxy does so.
PATIENCE = 20.0
# Bounds for a machine that does much else: about 4 s until another route answers, and 1 s until a link is used.
ANSWERED_WITHIN, BACK_WITHIN = 15.0, 12.0
LOADERS = 2
PREFILL_DECODE = (("prefill", "decode"), ("decode", "prefill"))
LINKS = {
    "prefill–decode": PREFILL_DECODE,
    "prefill→decode only": PREFILL_DECODE[:1],
    "decode→prefill only": PREFILL_DECODE[1:],
    "proxy–decode": (("proxy", "decode"), ("decode", "proxy")),
    "proxy→decode only": (("proxy", "decode"),),
    "decode→proxy only": (("decode", "proxy"),),
    "proxy–prefill": (("proxy", "prefill"), ("prefill", "proxy")),
    "proxy–both": (("proxy", "prefill"), ("prefill", "proxy"), ("proxy", "decode"), ("decode", "proxy")),
}
# No worker is left to serve meanwhile.
NOBODY_LEFT = "proxy–both"
SHORT = (("prefill–decode", 8.0), ("decode→proxy only", 6.0))


def name_of(link: str, seconds: float) -> str:
    return f"{link.replace('–', '-').replace('→', '-to-').replace(' ', '-')}-{seconds:g}"


CUTS = [
    pytest.param(link, seconds, marks=[] if (link, seconds) in SHORT else pytest.mark.long, id=name_of(link, seconds))
    for link in LINKS
    for seconds in (1.0, 3.0, 6.0, 8.0, 12.0, 30.0, 60.0, 120.0)
    if (link, seconds) in SHORT or seconds not in (6.0, 8.0)
]


class SteadyLoad:
    """Requests one after the other, by LOADERS at once: when each began and ended, and whether it was answered."""

    def __init__(self, hosts: Hosts) -> None:
        self.hosts, self.numbers, self.over = hosts, count(), threading.Event()
        self.done: list[tuple[float, float, bool]] = []
        self.threads = [threading.Thread(target=self.load, daemon=True) for _ in range(LOADERS)]

    def load(self) -> None:
        while not self.over.is_set():
            number, began = next(self.numbers), time.monotonic()
            prompt = [20 + (number + 13 * place) % 200 for place in range(40)]
            body = {"model": "tiny", "prompt": prompt, "max_tokens": 4, "temperature": 0, "ignore_eos": True}
            answer = self.hosts.fetch("/v1/completions", body, PATIENCE)
            whole = answer is not None and json.loads(answer)["usage"]["completion_tokens"] == 4
            self.done.append((began, time.monotonic(), whole))

    def __enter__(self) -> "SteadyLoad":
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *what: object) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join(PATIENCE + 10)

    def answered_after(self, moment: float) -> float | None:
        """Return when the first request ended well that began after this moment."""
        return min((ended for began, ended, whole in list(self.done) if whole and began >= moment), default=None)

    def wait_for_answer(self, moment: float) -> float:
        ended = wait_for(lambda: self.answered_after(moment), PATIENCE * 3, "an answer")
        assert ended is not None
        return ended


def handoffs(hosts: Hosts) -> float:
    """Return how many handoffs were complete."""
    told = re.search(r'^pontil_handoffs_total{result="complete"} (\S+)', hosts.fetch("/metrics") or "", re.M)
    return float(told[1]) if told else 0.0


def one_more_handoff(hosts: Hosts, timeout: float) -> None:
    before = handoffs(hosts)
    wait_for(lambda: handoffs(hosts) > before, timeout, "a handoff")


@pytest.fixture(scope="module")
def joined(module_hosts: Hosts, model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Three hosts that serve."""
    logs = tmp_path_factory.mktemp("logs")
    small = ("--model", model, "--served-model-name", "tiny", "--insecure")
    module_hosts.launch("proxy", logs / "proxy", "--control", CONTROL, "--disagg", "always", *small)
    module_hosts.launch("prefill", logs / "prefill", *FAR, *small, "--prefill", "cpu:0")
    module_hosts.launch("decode", logs / "decode", *FAR, *small, "--decode", "cpu:1")
    wait_for(lambda: handoffs(module_hosts) > 0, START_TIMEOUT, "the handoff of the self-test")
    yield module_hosts
    for name in NAMES:
        print(f"--- {name}\n{(logs / name).read_text()[-6000:]}")


@pytest.mark.parametrize(("link", "seconds"), CUTS)
def test_others_serve_and_a_link_is_used_once_it_is_back(
    joined: Hosts, link: str, seconds: float, pytestconfig: pytest.Config
) -> None:
    with SteadyLoad(joined) as load:
        one_more_handoff(joined, 60)
        cut_at = time.monotonic()
        for one, other in LINKS[link]:
            joined.lose(one, other)
        load.over.wait(seconds)  # as long as the link is meant to be cut
        before, back_at = handoffs(joined), time.monotonic()
        for one, other in LINKS[link]:
            joined.mend(one, other)
        wait_for(lambda: handoffs(joined) > before, START_TIMEOUT, "a handoff over the link that is back")
        used_at = time.monotonic()
        answered = load.wait_for_answer(cut_at)
    during = [one for one in load.done if one[1] >= cut_at and one[0] < used_at]
    outcome = CutOutcome(
        link, seconds, answered - cut_at, max(ended - began for began, ended, _ in during),
        sum(not whole for _, _, whole in during), len(during), used_at - back_at,
    )  # fmt: skip
    print(outcome)
    if pytestconfig.getoption(WRITE, default=False):
        write_page(outcome)
    assert outcome.back < BACK_WITHIN
    assert link == NOBODY_LEFT or (outcome.answered < ANSWERED_WITHIN and not outcome.failed)
