# SPDX-License-Identifier: Apache-2.0
"""Keys with shares and classes of their own, in some seeds: whatever befalls, each answer says the class and the share
of its key, and who gives way is answered too."""

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from site_plan import CALLERS, SitePlan

from pontil.http.fields.service_tier import TOLD, class_usage
from pontil.runtime.foundation.fair_share import ServiceClass

if TYPE_CHECKING:
    from seed_run import SeedRun

# Share of seeds with such keys.
CLASSED_SEEDS = 0.4
SHARES = (0.5, 1.0, 4.0)


def classed(plan: SitePlan, chance: random.Random) -> SitePlan:
    """Draw whether a seed has keys of several classes; return its site."""
    if chance.random() >= CLASSED_SEEDS or plan.tenants:
        return plan
    words = [each.word for each in ServiceClass]
    chance.shuffle(words)
    settings = [(("share", chance.choice(SHARES)), ("class", word)) for word in words]
    return replace(plan, allowances=tuple(zip(CALLERS, settings, strict=True)))


def usage_says_the_class(run: "SeedRun") -> Iterator[str]:
    """The usage of an answer has the class of its key, and its share."""
    settings = {CALLERS.get(name): dict(some) for name, some in run.plan.allowances}
    for call in run.calls:
        setting = settings.get(call.wish.key, {})
        word = str(setting.get("class", ServiceClass.STANDARD.word))
        share = float(setting.get("share", 1.0))
        expected = class_usage(TOLD[ServiceClass[word.upper()]], None if share == 1.0 else share)
        for one in call.tries:
            usage = one.usage or {}
            said = {name: usage[name] for name in ("service_tier", "share") if name in usage}
            if "service_tier" in said and said != expected:
                yield f"{one.name} is of the class {word} with the share {share}, and its usage says {said}"
