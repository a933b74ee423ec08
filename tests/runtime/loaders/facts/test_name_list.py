# SPDX-License-Identifier: Apache-2.0
import re

from hypothesis import given
from hypothesis import strategies as st

from pontil.runtime.loaders.facts.name_list import name_list


def unfolded(text: str) -> list[str]:
    """The names that a folded list stands for."""
    names = text.split(", ")
    while any("[" in name for name in names):
        names = [longer for name in names for longer in spelled(name)]
    return names


def spelled(name: str) -> list[str]:
    found = re.search(r"\[([^]]*)\]", name)
    if found is None:
        return [name]
    numbers = [
        number for run in found[1].split(",") for number in range(int(run.split("-")[0]), int(run.split("-")[-1]) + 1)
    ]
    return [name[: found.start()] + str(number) + name[found.end() :] for number in numbers]


def test_a_handful_is_listed_as_it_is() -> None:
    assert name_list(["b.1.w", "a", "b.0.w"]) == "b.1.w, a, b.0.w"


def test_thousands_fold() -> None:
    names = [f"layers.{i}.experts.{j}.{w}" for i in (0, 1, 2, 7) for j in range(128) for w in ("up", "down")]
    assert name_list(["head", *names]) == "head, layers.[0-2,7].experts.[0-127].up, layers.[0-2,7].experts.[0-127].down"


PARTS = ["a", "b", *map(str, range(20))]
NAMES = st.tuples(st.sampled_from("ab"), st.lists(st.sampled_from(PARTS), max_size=3))


@given(st.lists(NAMES.map(lambda parts: ".".join([parts[0], *parts[1]])), max_size=30))
def test_no_name_is_lost_and_none_is_made_up(names: list[str]) -> None:
    assert sorted(unfolded(name_list(names))) == sorted(set(names)) if names else name_list(names) == ""
