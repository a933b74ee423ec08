# SPDX-License-Identifier: Apache-2.0
"""Checks on docs/internals/rules.md: it states every rule that is cited, each rule has one row, whatever a row names
exists, and tests that cite a rule are in its row."""

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from source_tree import ROOT, each, text_of, texts, tree_of

TESTS = Path(__file__).resolve().parent
PAGE = ROOT / "docs" / "internals" / "rules.md"
LAST = {"A": 12, "B": 13, "C": 16, "D": 21, "E": 16, "F": 7, "G": 5, "H": 8}
# Rules that are not implemented: they have no rows, and their text says so.
UNBUILT: set[str] = set()
ALL = [f"{letter}{number}" for letter, last in LAST.items() for number in range(1, last + 1)]
RULES = [rule for rule in ALL if rule not in UNBUILT]
ROW = re.compile(r"^\| ([A-Z]\d+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
NAMED = re.compile(r"`([\w/]*test_\w+\.py)(?:::(\w+))?`")
# The same, with the words behind one that runs only then.
MARKED = re.compile(NAMED.pattern + r"( \(with `scripts/test\.sh --long`\))?")
LONG = "pytest.mark.long"
# Helpers of tests that run real workers, a real engine or the world, whose workers are real; and letters of the rules
# about what these do together.
REAL = {
    "drafting_launch",
    "engine_site",
    "node_site",
    "pair1p1d",
    "rank_groups",
    "rank_processes",
    "served",
    "sidecar",
    "simulation",
    "stage_site",
    "staged",
    "tiny",
    "workers",
}
OF_WORKERS = "CEH"
CITED = re.compile(r"^# ((?:[A-G]\d{1,2})(?:, [A-G]\d{1,2})*)(?:$|[:;.])")
# Text that most files lack. Only the others are split into tokens, which takes the longest.
MAY_CITE = re.compile(r"# [A-G]\d")
STATED = re.compile(r"^### ([A-Z]\d+)\. \S.*\n\n(Not built yet: \w)?(?=[^#\n])", re.MULTILINE)
PROMISED = re.compile(r"^### Promise (\d)\. \S.*\n\n(?=[^#\n])", re.MULTILINE)
NUMBER = re.compile(r"\b[A-H]\d{1,2}\b")
PROMISE = re.compile(r"\b[Pp]romises? (\d(?:(?:, | and )\d)*)")
# Number types and a kind of GPU, which look like rules.
NO_RULES = {"F16", "F32", "F64", "H20", "A0"}
# Phrases, one of which a row without a test or a lint must contain.
ADMITS = ("not built", "not enforced", "mypy")

ROWS = ROW.findall(PAGE.read_text())
STATEMENTS = STATED.findall(PAGE.read_text())
RULES_STATED = [rule for rule, _ in STATEMENTS]


def spans_of(path: Path) -> Iterator[tuple[str, range]]:
    """Yield each test of a file with its lines, decorators included."""
    for node in tree_of(path).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            yield node.name, range(first, (node.end_lineno or first) + 1)


def citations(path: Path) -> Iterator[tuple[str, str | None]]:
    """Yield the rules that comments cite, with the enclosing test (None: outside all tests)."""
    if not MAY_CITE.search(text_of(path)):
        return
    spans = list(spans_of(path))
    for token in tokenize.generate_tokens(io.StringIO(text_of(path)).readline):
        cited = CITED.match(token.string) if token.type == tokenize.COMMENT else None
        for rule in cited[1].split(", ") if cited else ():
            yield rule, next((name for name, lines in spans if token.start[0] in lines), None)


@cache
def all_citations() -> tuple[tuple[str, str, str | None], ...]:
    """Return each citation with its test's file. Found in the process that runs these tests, not in all that list
    them."""
    files = sorted(TESTS.rglob("test_*.py"))
    return tuple((rule, str(path.relative_to(TESTS)), name) for path in files for rule, name in citations(path))


def test_every_rule_has_one_row_in_order() -> None:
    assert [rule for rule, _, _ in ROWS] == RULES
    assert not [rule for rule, count in Counter(rule for rule, _, _ in ROWS).items() if count > 1]


def test_every_rule_is_stated_once_in_order() -> None:
    assert RULES_STATED == ALL


def numbers_resolve(path: Path) -> None:
    text = text_of(path)
    rules = set(NUMBER.findall(text)) - NO_RULES - set(RULES_STATED)
    assert not rules, f"no such rules: {sorted(rules)}"
    promises = {number for found in PROMISE.findall(text) for number in re.findall(r"\d", found)}
    assert promises <= set(PROMISED.findall(text_of(PAGE))), f"no such promises: {sorted(promises)}"


def test_every_number_that_is_cited_is_stated() -> None:
    each(texts(), numbers_resolve)


def test_a_number_that_is_not_stated_is_seen(tmp_path: Path) -> None:
    for place, wrong in enumerate((f"As A{99} asks.", f"Promises 1 and {9}.", f"# F{8}: something")):
        page = tmp_path / f"{place}.md"
        page.write_text(wrong)
        with pytest.raises(AssertionError, match="no such"):
            numbers_resolve(page)


def test_rules_without_rows_are_admitted() -> None:
    """A rule that is implemented leaves this set and gets a row."""
    assert {rule for rule, unbuilt in STATEMENTS if unbuilt} == UNBUILT
    assert not UNBUILT or "every rule" not in PAGE.read_text().lower().partition("## a.")[0]


@pytest.mark.parametrize(("rule", "keeper"), [(rule, keeper) for rule, _, keeper in ROWS])
def test_what_keeps_a_rule_exists(rule: str, keeper: str) -> None:
    assert NAMED.search(keeper) or any(words in keeper for words in ADMITS), f"{rule} is kept by nothing"
    assert len(NAMED.findall(keeper)) == keeper.count(".py"), f"{rule}: a name that cannot be read"
    for name, test in NAMED.findall(keeper):
        path = TESTS / name
        assert path.is_file(), f"{rule}: tests/{name} is not there"
        assert not test or test in dict(spans_of(path)), f"{rule}: tests/{name} has no {test}"


def long_tests(path: Path) -> dict[str, bool]:
    """Return of each test of a file whether it runs only with --long."""
    assigned = [node for node in tree_of(path).body if isinstance(node, ast.Assign) and ast.unparse(node.value) == LONG]
    names = {LONG, *(ast.unparse(target) for node in assigned for target in node.targets)}
    tests = [node for node in tree_of(path).body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {
        node.name: "pytestmark" in names or any(ast.unparse(one) in names for one in node.decorator_list)
        for node in tests
        if node.name.startswith("test_")
    }


@pytest.mark.parametrize(("rule", "keeper"), [(rule, keeper) for rule, _, keeper in ROWS])
def test_a_row_says_which_of_its_tests_need_long(rule: str, keeper: str) -> None:
    for name, test, said in MARKED.findall(keeper):
        marks = long_tests(TESTS / name)
        is_long = marks[test] if test else all(marks.values())
        assert is_long == bool(said), f"{rule}: `{name}` is {'' if is_long else 'not '}for --long alone: say so"


def helpers_of(path: Path) -> set[str]:
    nodes = ast.walk(tree_of(path))
    return {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}


def runs_real_ones(keeper: str) -> bool:
    return any(helpers_of(TESTS / name) & REAL for name, _ in NAMED.findall(keeper))


def test_what_is_modelled_is_said_to_be() -> None:
    """A rule about workers is kept by tests of which one runs real ones, or its row says that they are modelled."""
    rows = [(rule, f"{kept} {keeper}") for rule, kept, keeper in ROWS if rule[0] in OF_WORKERS]
    silent = [rule for rule, row in rows if "modelled" not in row and not runs_real_ones(row)]
    assert not silent, f"these rows name no test with real workers, and do not say what is modelled: {silent}"


def test_a_row_of_models_alone_is_seen() -> None:
    assert not runs_real_ones("`runtime/stages/graph/test_partition_model.py`")
    assert runs_real_ones("`runtime/stages/graph/test_partition_model.py`, `system/test_omni.py`")
    assert long_tests(TESTS / "system" / "test_changes.py")["test_a_group_that_ends_hands_its_streams_to_the_others"]


def test_only_rules_that_exist_are_cited() -> None:
    assert not [cited for cited in all_citations() if cited[0] not in RULES]


def test_tests_that_cite_a_rule_are_in_its_row() -> None:
    named = {rule: NAMED.findall(keeper) for rule, _, keeper in ROWS}
    files = {rule: {name for name, _ in pairs} for rule, pairs in named.items()}
    missing = {
        f"{rule} at {path}::{test}"
        for rule, path, test in all_citations()
        if (path, "") not in named[rule] and (path, test) not in named[rule] and (test or path not in files[rule])
    }
    assert not missing, f"docs/internals/rules.md should name: {', '.join(sorted(missing))}"
