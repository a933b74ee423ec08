# SPDX-License-Identifier: Apache-2.0
"""Lines of batches in the proxy, over real schedulers in virtual time: they fill idle seats, and nobody waits."""

from random import Random

from effort import examples
from engine_site import EngineSite, as_alone

from pontil.runtime.cache.prefix import full_keys
from pontil.runtime.foundation.fair_share import ServiceClass
from pontil.runtime.proxy.requests.answer import WholeAnswer
from pontil.runtime.proxy.requests.generation import Generation
from pontil.runtime.proxy.requests.stream import Stream
from pontil.runtime.proxy.requests.ticket import Allowance, Ticket
from pontil.runtime.proxy.routing.held_prefixes import short_key
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.tokenizer.tokenizer import Tokenizer

SEATS = 8


def line(site: EngineSite, number: int, tokens: int = 40) -> Stream:
    params = SamplingParams(max_tokens=tokens, seed=1, temperature=1.0, ignore_eos=True)
    ticket = Ticket(f"line-{number}", "owner", Allowance(requests=1), ServiceClass.BATCH.place(), whole=WholeAnswer(1))
    return site.submit(ticket, Generation([number % 251, number // 251, 7, 7, 9], params))


def first_tokens(site: EngineSite, with_lines: bool) -> tuple[list[float], float, list[Stream]]:
    """Have the same clients ask for a while; return their waits, and the part of idle seats that lines had."""
    worker, random = site.worker("w", SEATS), Random(5)
    site.measure()
    lines, asked, idle, used = list[Stream](), list[Stream](), 0, 0
    for turn in range(examples(150, 2000)):
        while with_lines and len(site.admissions.generating.background) < 4:
            lines.append(line(site, len(lines)))
        if random.random() < 0.12:
            asked.append(site.ask(random.choice("abc"), tokens=random.randint(1, 60), length=random.randint(5, 100)))
        site.run(0.05)
        if turn > 4:
            idle += SEATS - worker.world.queues.seats.taken
            used += worker.world.queues.seats.lent
    site.run(60.0)
    assert all(as_alone(stream.request) for stream in asked)
    waits = []
    for stream in asked:
        assert stream.request.times.first_token is not None
        waits.append(stream.request.times.first_token - stream.request.times.arrived)
    return sorted(waits), used / idle, lines


def test_clients_wait_no_longer_and_idle_seats_are_used(tokenizer: Tokenizer) -> None:
    alone, _, _ = first_tokens(EngineSite(tokenizer), with_lines=False)
    beside, used, lines = first_tokens(EngineSite(tokenizer), with_lines=True)
    place = int(0.99 * len(alone))
    assert len(alone) == len(beside) and beside[place] <= 1.05 * alone[place] + 0.02, "a step is 0.02 s"
    assert used >= 0.95 and len(lines) > 40
    assert all(as_alone(stream.request) for stream in lines if stream.request.complete)


def test_a_line_counts_against_no_limit_and_is_in_nobodys_wait(tokenizer: Tokenizer) -> None:
    site = EngineSite(tokenizer)
    site.worker("w", SEATS)
    site.measure()
    lines = [line(site, number, 300) for number in range(40)]
    site.run(2.0)
    assert site.queue.wait(Ticket(caller="owner"), 5) == 0.0 and site.registry.generating.seats.free == SEATS
    assert not site.admissions.generating.choices
    asked = [site.ask("owner", tokens=2) for _ in range(SEATS)]
    site.run(1.0)
    assert all(stream.request.complete for stream in asked)
    for stream in lines:
        stream.cancel()
    site.run(1.0)
    assert not site.requests and not site.registry.workers["w"].seat_counts.lent


def test_a_line_that_waits_for_long_is_not_given_up(tokenizer: Tokenizer) -> None:
    site = EngineSite(tokenizer)
    site.worker("w", 1)
    begun, waits = line(site, 1, 50), line(site, 2, 5)
    site.run(0.2)
    for _ in range(9):
        site.ask("a", tokens=400)
        site.run(8.2)
    site.run(30.0)
    assert begun.request.complete and waits.request.complete


def test_a_line_goes_to_who_holds_its_prompt_by_a_lease(tokenizer: Tokenizer) -> None:
    site = EngineSite(tokenizer)
    for name in ("idle", "holder"):
        site.worker(name, SEATS)
    site.measure()
    size, prompt = site.registry.workers["holder"].hello.block_size, [3] * 100
    site.registry.workers["holder"].prefixes.lease([short_key(key) for key in full_keys(prompt, "", size)])
    params = SamplingParams(max_tokens=5, seed=1, temperature=1.0, ignore_eos=True)
    for number in range(SEATS):
        ticket = Ticket(f"l{number}", "", Allowance(), ServiceClass.BATCH.place(), whole=WholeAnswer(1))
        stream = site.submit(ticket, Generation([*prompt, number], params))
        assert stream.route == "holder"
    site.run(10.0)
    assert site.idle


def test_a_client_of_the_class_batch_gives_way_like_a_line_and_counts(
    tokenizer: Tokenizer,
) -> None:
    site = EngineSite(tokenizer)
    worker = site.worker("w", SEATS)
    site.measure()
    slow = [site.ask("owner", tokens=120, priority=ServiceClass.BATCH.place()) for _ in range(2 * SEATS)]
    site.run(1.0)
    assert worker.world.queues.seats.lent == SEATS and site.admissions.generating.by_caller["owner"] == 2 * SEATS
    assert site.queue.wait(Ticket(caller="owner"), 5) == 0.0
    quick = [site.ask("a", tokens=100) for _ in range(SEATS)]
    site.run(0.1)
    assert worker.world.queues.seats.lent == 0 and worker.world.queues.seats.taken == SEATS
    site.run(60.0)
    assert all(as_alone(stream.request) for stream in (*quick, *slow)) and site.idle
