# SPDX-License-Identifier: Apache-2.0
"""Two proxies on hosts of their own, of which one is cut off from the workers without a word: the other one serves, a
stream of the one that is cut off waits and goes on, and it serves again once the links are back. These rows of the
table in docs/operate/hosts.md are written by this test, where pytest is told so."""

from collections.abc import Iterator
from functools import partial

import pytest
from cut_load import LONG_CONTEXT, StreamedAnswer, Ways, cut_once, handoffs, name_of
from link_table import WRITE, write_page
from network_hosts import CONTROL, OTHER_CONTROL, TWO_PROXIES, Hosts
from served import START_TIMEOUT, wait_for
from tiny_llama import write_tiny_llama

# Bounds for a machine that does much else; the other proxy's clients notice nothing else.
OTHERS_ANSWERED_WITHIN, BACK_WITHIN = 10.0, 6.0
TO_WORKERS: Ways = (("proxy", "prefill"), ("proxy", "decode"))
FROM_WORKERS: Ways = (("prefill", "proxy"), ("decode", "proxy"))
LINKS: dict[str, Ways] = {
    "one of two proxies–both workers": TO_WORKERS + FROM_WORKERS,
    "one of two proxies→both workers only": TO_WORKERS,
    "both workers→one of two proxies only": FROM_WORKERS,
}
# By default tests/system/test_links.py cuts a link, and tests/world silences any link of any of two proxies.
pytestmark = pytest.mark.long
CUTS = [
    pytest.param(link, seconds, id=name_of(link, seconds))
    for link in LINKS
    for seconds in (1.0, 3.0, 12.0, 30.0, 60.0, 120.0)
]


def hands_over(hosts: Hosts, name: str) -> bool:
    """Ask a proxy for a short answer; return whether it knows of a handoff."""
    body = {"model": "tiny", "prompt": list(range(20, 60)), "max_tokens": 4, "temperature": 0, "ignore_eos": True}
    return hosts.fetch("/v1/completions", body, 20.0, on=name) is not None and handoffs(hosts, name) > 0


@pytest.fixture(scope="module")
def joined(two_proxy_hosts: Hosts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Two proxies, and two workers that serve both."""
    logs, model = tmp_path_factory.mktemp("logs"), tmp_path_factory.mktemp("model")
    write_tiny_llama(model, max_model_len=LONG_CONTEXT)
    small = ("--model", str(model), "--served-model-name", "tiny", "--insecure")
    for name, control in (("proxy", CONTROL), ("other-proxy", OTHER_CONTROL)):
        two_proxy_hosts.launch(name, logs / name, "--control", control, "--disagg", "always", *small, role="proxy")
    far = ("--join", f"{CONTROL},{OTHER_CONTROL}", "--kv-connector", "tcp")
    two_proxy_hosts.launch("prefill", logs / "prefill", *far, *small, "--prefill", "cpu:0")
    two_proxy_hosts.launch("decode", logs / "decode", *far, *small, "--decode", "cpu:1")
    for name in ("proxy", "other-proxy"):
        wait_for(partial(hands_over, two_proxy_hosts, name), START_TIMEOUT, "a handoff")
    yield two_proxy_hosts
    for name in TWO_PROXIES:
        print(f"--- {name}\n{(logs / name).read_text()[-6000:]}")


@pytest.mark.parametrize(("link", "seconds"), CUTS)
def test_another_proxy_serves_while_one_is_cut_off(
    joined: Hosts, uncut: StreamedAnswer, link: str, seconds: float, pytestconfig: pytest.Config
) -> None:
    outcome, answer = cut_once(joined, link, LINKS[link], seconds, others="other-proxy")
    if pytestconfig.getoption(WRITE, default=False):
        write_page(outcome)
    assert answer == uncut
    assert outcome.back < BACK_WITHIN
    assert outcome.longest < OTHERS_ANSWERED_WITHIN and not outcome.failed
