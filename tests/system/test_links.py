# SPDX-License-Identifier: Apache-2.0
"""Links between three hosts that are cut without a word, in one direction or both: others serve, and go on with it once
it is back. The table in docs/operate/hosts.md is written by this test, where pytest is told so."""

from collections.abc import Iterator

import pytest
from cut_load import LONG_CONTEXT, StreamedAnswer, Ways, cut_once, handoffs, name_of
from link_table import WRITE, write_page
from network_hosts import CONTROL, FAR, NAMES, Hosts
from served import START_TIMEOUT, wait_for
from tiny_llama import write_tiny_llama

# Bounds for a machine that does much else: about 4 s until another route answers, and 1 s until a link is used.
ANSWERED_WITHIN, BACK_WITHIN = 15.0, 12.0
PREFILL_DECODE = (("prefill", "decode"), ("decode", "prefill"))
LINKS: dict[str, Ways] = {
    "prefill–decode": PREFILL_DECODE,
    "prefill→decode only": PREFILL_DECODE[:1],
    "decode→prefill only": PREFILL_DECODE[1:],
    "proxy–decode": (("proxy", "decode"), ("decode", "proxy")),
    "proxy→decode only": (("proxy", "decode"),),
    "decode→proxy only": (("decode", "proxy"),),
    "proxy–prefill": (("proxy", "prefill"), ("prefill", "proxy")),
    "proxy→prefill only": (("proxy", "prefill"),),
    "prefill→proxy only": (("prefill", "proxy"),),
    "proxy–both": (("proxy", "prefill"), ("prefill", "proxy"), ("proxy", "decode"), ("decode", "proxy")),
}
# No worker is left to serve meanwhile.
NOBODY_LEFT = "proxy–both"
CUTS = [
    pytest.param(link, seconds, id=name_of(link, seconds))
    for link in LINKS
    for seconds in (1.0, 3.0, 12.0, 30.0, 60.0, 120.0)
]
# By default tests/world silences and cuts links at any point, those to a proxy too (`silence`, `cut`), and its
# stand-ins are held to real connections that are silent (`nothing-comes-to-a-server`, `unanswered-address`).
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def joined(module_hosts: Hosts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Three hosts that serve."""
    logs, model = tmp_path_factory.mktemp("logs"), tmp_path_factory.mktemp("model")
    write_tiny_llama(model, max_model_len=LONG_CONTEXT)
    small = ("--model", str(model), "--served-model-name", "tiny", "--insecure")
    module_hosts.launch("proxy", logs / "proxy", "--control", CONTROL, "--disagg", "always", *small)
    module_hosts.launch("prefill", logs / "prefill", *FAR, *small, "--prefill", "cpu:0")
    module_hosts.launch("decode", logs / "decode", *FAR, *small, "--decode", "cpu:1")
    wait_for(lambda: handoffs(module_hosts) > 0, START_TIMEOUT, "the handoff of the self-test")
    yield module_hosts
    for name in NAMES:
        print(f"--- {name}\n{(logs / name).read_text()[-6000:]}")


@pytest.mark.parametrize(("link", "seconds"), CUTS)
def test_others_serve_and_a_link_is_used_once_it_is_back(
    joined: Hosts, uncut: StreamedAnswer, link: str, seconds: float, pytestconfig: pytest.Config
) -> None:
    outcome, answer = cut_once(joined, link, LINKS[link], seconds)
    if pytestconfig.getoption(WRITE, default=False):
        write_page(outcome)
    assert answer == uncut
    assert outcome.back < BACK_WITHIN
    assert link == NOBODY_LEFT or (outcome.answered < ANSWERED_WITHIN and not outcome.failed)
