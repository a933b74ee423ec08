# SPDX-License-Identifier: Apache-2.0
"""Model checking of the handoff tables, with a hostile network and processes that die, and proof that the search would
find an error in a table.

Checked in every reachable state: no read of a freed block goes unnoticed, no copier writes into a freed block, no block
is released as fetched that the peer does not have. Checked for all runs: each fair one (deadlines pass) ends, with
every block and every epoch cell free.
"""

import pytest
from handoff_model import Handoffs
from handoff_ranks import RankRules, free_theirs, joint
from handoff_world import (
    GivingRank,
    HandoffWorld,
    ModelSend,
    Transfer,
    at_rest,
    bump_epoch,
)
from search import Found, SearchStep, Violation, search

from pontil.runtime.disaggregation.states import (
    LET_GO,
    RECEIVING,
    SENDING,
    ReceiveAction,
    ReceiveEvent,
    ReceiveState,
    ReceivingTable,
    SendAction,
    SendEvent,
    SendingTable,
    SendState,
)


def check(
    sizes: tuple[int, ...],
    crashes: int,
    repeats: int,
    sending: SendingTable,
    receiving: ReceivingTable,
    rules: RankRules | None = None,
    kept: tuple[bool, ...] = (),
) -> Found:
    """Search all runs; with `rules`, of workers of two ranks each. Those transfers are of `kept` prompts."""
    keeps = (*kept, *(False for _ in sizes))
    transfers = tuple(Transfer(size, keep) for size, keep in zip(sizes, keeps, strict=False))
    start = HandoffWorld(transfers, crashes=crashes, repeats=repeats)
    start = start if rules is None else start._replace(behind=GivingRank())
    return search(start, Handoffs(sending, receiving, rules).steps, at_rest)


@pytest.mark.parametrize(
    ("sizes", "crashes", "repeats"),
    [
        pytest.param((2, 2), 0, 0, id="two that do not fit at once", marks=pytest.mark.long),
        pytest.param((2, 2), 1, 0, id="two that do not fit at once, and a crash", marks=pytest.mark.long),
        pytest.param((1, 1), 1, 0, id="two at once, and a crash", marks=pytest.mark.long),
        pytest.param((2,), 1, 1, id="one that is opened again, and a crash"),
        pytest.param((2, 1), 1, 0, id="two at once, of two blocks and of one", marks=pytest.mark.long),
        pytest.param((2, 2), 0, 1, id="two, of which one is opened again", marks=pytest.mark.long),
    ],
)
def test_no_run_leaks_or_reads_or_writes_what_it_must_not_and_every_run_ends(
    sizes: tuple[int, ...], crashes: int, repeats: int
) -> None:
    found = check(sizes, crashes, repeats, SENDING, RECEIVING)
    print(f"{sizes}: {found.worlds} worlds, {found.steps} steps")
    assert found.worlds > 1000


@pytest.mark.parametrize(
    ("sizes", "kept", "crashes", "repeats"),
    [
        pytest.param((2,), (True,), 1, 1, id="one that is kept again, and a crash"),
        pytest.param(
            (2, 2), (True,), 0, 0, id="a kept one and another that do not fit at once", marks=pytest.mark.long
        ),
        pytest.param((2, 2), (True, True), 0, 0, id="two kept ones", marks=pytest.mark.long),
        pytest.param((2, 1), (True,), 1, 0, id="a kept one and another, and a crash", marks=pytest.mark.long),
    ],
)
def test_a_kept_prompt_is_claimed_once_or_expires(
    sizes: tuple[int, ...], kept: tuple[bool, ...], crashes: int, repeats: int
) -> None:
    found = check(sizes, crashes, repeats, SENDING, RECEIVING, kept=kept)
    print(f"{sizes}, kept {kept}: {found.worlds} worlds, {found.steps} steps")
    assert found.worlds > 900


@pytest.mark.long
def test_two_ranks_keep_a_prompt_together() -> None:  # C6, H6
    assert check((1,), 0, 1, SENDING, RECEIVING, RankRules(), kept=(True,)).worlds > 900


WRONG_KEEPING: dict[str, tuple[SendingTable, str]] = {
    "a kept prompt has no deadline": (
        {(SendState.PREPARING, SendEvent.COMPUTED): (SendState.KEPT, ())}, "nothing is owed",
    ),
    "a claimed prompt has no deadline": (
        {(SendState.KEPT, SendEvent.CLAIMED): (SendState.HELD, ())}, "nothing is owed",
    ),
    "a prompt that expired unclaimed keeps its blocks": (
        {(SendState.KEPT, SendEvent.LATE): (SendState.EXPIRED, (LET_GO[0], LET_GO[2]))}, "nothing is owed",
    ),
    "an unclaimed prompt that is dropped keeps its cell": (
        {(SendState.KEPT, SendEvent.DROPPED): (SendState.ABANDONED, LET_GO[:2])}, "nothing is owed",
    ),
    "a claim ends what it hands over": (
        {(SendState.KEPT, SendEvent.CLAIMED): (SendState.RELEASED, LET_GO[1:])}, "nobody",
    ),
    "a claimed prompt can be claimed again": (
        {(SendState.KEPT, SendEvent.CLAIMED): (SendState.KEPT, (SendAction.START_LEASE,))}, "a circle",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_KEEPING)
def test_a_wrong_row_about_kept_prompts_is_found_out(name: str) -> None:
    rows, says = WRONG_KEEPING[name]
    with pytest.raises(Violation, match=says):
        check((2,), 0, 1, {**SENDING, **rows}, RECEIVING, kept=(True,))


@pytest.mark.parametrize(
    ("sizes", "crashes", "repeats"),
    [
        pytest.param((1,), 0, 1, id="one that is opened again", marks=pytest.mark.long),
        pytest.param((1,), 1, 0, id="one, and a crash"),
        pytest.param((2,), 0, 0, id="one in two pieces", marks=pytest.mark.long),
        pytest.param((2,), 1, 0, id="one in two pieces, and a crash", marks=pytest.mark.long),
        pytest.param((2,), 0, 1, id="one in two pieces that is opened again", marks=pytest.mark.long),
    ],
)
def test_two_ranks_let_go_together(sizes: tuple[int, ...], crashes: int, repeats: int) -> None:  # C6, H6
    found = check(sizes, crashes, repeats, SENDING, RECEIVING, RankRules())
    print(f"{sizes}: {found.worlds} worlds, {found.steps} steps")
    assert found.worlds > 1000


def free_alone(world: HandoffWorld, number: int, sent: ModelSend) -> HandoffWorld:
    """Let the second rank overwrite the blocks before it bumps its cell, which was ordered last."""
    world = free_theirs(world, number, sent)
    assert world.behind is not None
    *before, bump, write = world.behind.orders
    return world._replace(behind=world.behind._replace(orders=(*before, write, bump)))


WRONG_RULES: dict[str, tuple[RankRules, str]] = {
    "the blocks of one prefill rank are freed alone": (RankRules(free=free_alone), "nobody noticed"),
    "the cell of the second prefill rank is not bumped": (RankRules(bump=bump_epoch), "nobody noticed"),
    "blocks are announced before every rank has them": (
        RankRules(announce=lambda world, number, message: world.send(number, message)), "nobody noticed",
    ),
    "the first rank that fails ends a pull": (
        RankRules(joint=lambda reports: False if (0, False) in reports or (1, False) in reports else joint(reports)),
        "a copier writes",
    ),
    "the first rank that is done ends a pull": (RankRules(joint=lambda reports: reports[0][1]), "a copier writes"),
    "two reports of one rank end a pull": (
        RankRules(joint=lambda reports: all(good for _, good in reports) if len(reports) == 2 else None),
        "a copier writes",
    ),
    "a pull waits for the second rank only": (
        RankRules(joint=lambda reports: dict(reports).get(1)), "a copier writes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_RULES)
def test_a_wrong_rule_for_ranks_is_found_out(name: str) -> None:  # C6, H6
    rules, says = WRONG_RULES[name]
    with pytest.raises(Violation, match=says):
        check((2,), 0, 0, SENDING, RECEIVING, rules)


SWAPPED = (SendAction.FREE_BLOCKS, SendAction.BUMP_EPOCH, SendAction.FREE_SLOT)
WRONG_SENDING: dict[str, tuple[SendingTable, str]] = {
    "blocks are freed before the epoch is bumped": (
        {(SendState.HELD, SendEvent.LATE): (SendState.EXPIRED, SWAPPED)},
        "nobody noticed",
    ),
    "blocks of a finished prompt are freed before the epoch is bumped": (
        {(SendState.COMPUTING, SendEvent.FINISHED): (SendState.RELEASED, SWAPPED)},
        "nobody noticed",
    ),
    "the epoch is not bumped": (
        {(SendState.HELD, SendEvent.DROPPED): (SendState.ABANDONED, LET_GO[1:])},
        "nobody noticed",
    ),
    "a lease has no deadline": (
        {(SendState.COMPUTING, SendEvent.COMPUTED): (SendState.HELD, ())},
        "nothing is owed",
    ),
    "Fetched of an older epoch is accepted": (
        {(SendState.HELD, SendEvent.STALE): (SendState.RELEASED, LET_GO)},
        "nobody has",
    ),
    "an expired prompt keeps its blocks": (
        {(SendState.COMPUTING, SendEvent.LATE): (SendState.EXPIRED, (LET_GO[0], LET_GO[2]))},
        "nothing is owed",
    ),
    "an epoch cell is never given back": (
        {(SendState.HELD, SendEvent.FETCHED): (SendState.RELEASED, LET_GO[:2])},
        "nothing is owed",
    ),
}
FREED = (ReceiveAction.FREE_BLOCKS, ReceiveAction.CANCEL_PULLS)
WRONG_RECEIVING: dict[str, tuple[ReceivingTable, str]] = {
    "blocks are freed while they drain": (
        {(ReceiveState.PULLING, ReceiveEvent.CANCELLED): (ReceiveState.DRAINING, FREED)},
        "a copier writes",
    ),
    "a fault ends the transfer while pulls are open": (
        {(ReceiveState.PULLING, ReceiveEvent.FAULT): (ReceiveState.FAILED, FREED)},
        "a copier writes",
    ),
    "a failed transfer keeps its blocks": (
        {(ReceiveState.PULLING, ReceiveEvent.SPOILED): (ReceiveState.FAILED, (ReceiveAction.SEND_ABANDON,))},
        "nothing is owed",
    ),
    "a cancelled transfer keeps its blocks": (
        {(ReceiveState.DRAINING, ReceiveEvent.QUIET): (ReceiveState.CANCELLED, ())},
        "nothing is owed",
    ),
    "pulls of a failed transfer are not cancelled": (
        {(ReceiveState.PULLING, ReceiveEvent.FAULT): (ReceiveState.PULLING, ())},
        "nothing is owed",
    ),
}


@pytest.mark.parametrize("name", WRONG_SENDING)
def test_a_wrong_prefill_table_is_found_out(name: str) -> None:
    rows, says = WRONG_SENDING[name]
    with pytest.raises(Violation, match=says):
        check((2,), 0, 1, {**SENDING, **rows}, RECEIVING)


@pytest.mark.parametrize("name", WRONG_RECEIVING)
def test_a_wrong_decode_table_is_found_out(name: str) -> None:
    rows, says = WRONG_RECEIVING[name]
    with pytest.raises(Violation, match=says):
        check((2,), 0, 1, SENDING, {**RECEIVING, **rows})


@pytest.mark.parametrize("name", [*WRONG_SENDING, *WRONG_RECEIVING])
def test_a_wrong_table_is_found_out_with_two_ranks(name: str) -> None:
    sending, says = WRONG_SENDING.get(name, (SENDING, ""))
    receiving, says = WRONG_RECEIVING.get(name, (RECEIVING, says))
    repeats = 0 if "finished" in name else 1
    with pytest.raises(Violation, match=says):
        check((2 - repeats,), 0, repeats, {**SENDING, **sending}, {**RECEIVING, **receiving}, RankRules())


@pytest.mark.parametrize("here", [SendState.COMPUTING, SendState.HELD])
def test_a_deadline_that_is_missing_at_prefill_is_found_out(here: SendState) -> None:
    rows = {key: row for key, row in SENDING.items() if key != (here, SendEvent.LATE)}
    with pytest.raises(Violation, match="nothing is owed"):
        check((2,), 0, 0, rows, RECEIVING)


@pytest.mark.parametrize("here", [ReceiveState.PULLING, ReceiveState.DRAINING])
def test_a_deadline_that_is_missing_at_decode_is_found_out(here: ReceiveState) -> None:
    rows = {key: row for key, row in RECEIVING.items() if key != (here, ReceiveEvent.STUCK)}
    with pytest.raises(Violation, match="nothing is owed"):
        check((2,), 0, 0, SENDING, rows)


def test_the_search_itself_sees_circles_dead_ends_and_the_shortest_way() -> None:
    def steps(edges: dict[int, list[int]], here: int) -> list[SearchStep[int]]:
        if here == 9:
            raise Violation("nine")
        return [SearchStep(f"to {there}", there, True) for there in edges.get(here, [])]

    assert search(0, lambda here: steps({0: [1, 2], 1: [3], 2: [3]}, here), lambda here: here == 3) == Found(4, 4)
    with pytest.raises(Violation, match="a circle"):
        search(0, lambda here: steps({0: [1], 1: [2], 2: [1, 3]}, here), lambda here: here == 3)
    with pytest.raises(Violation, match=r"not at rest: 2\nto 2"):
        search(0, lambda here: steps({0: [1, 2], 1: [3]}, here), lambda here: here == 3)
    with pytest.raises(Violation, match=r"nine\nto 5 -> to 9"):
        search(0, lambda here: steps({0: [1, 5], 1: [2], 2: [9], 5: [9]}, here), lambda here: True)
