# SPDX-License-Identifier: Apache-2.0
"""Checks on the documents: every command line parses; every flag, file, link and decision that they name exists
(D9)."""

import re
import shlex
from contextlib import nullcontext
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from source_tree import each, text_of, texts

from pontil.launcher.cli import cli
from pontil.launcher.foundation.errors import OptionError
from pontil.launcher.host.devices import HostDevices
from pontil.launcher.options.options import OPTIONS, flag_name, read_options
from pontil.launcher.options.sources import load_toml
from pontil.launcher.plan.topology import plan
from pontil.runtime.stages.graph.catalog import GRAPHS, GraphModel

ROOT = Path(__file__).resolve().parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
EVERY_PAGE = pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
SCRIPTS = {path.name: path.read_text() for path in (ROOT / "scripts").iterdir() if path.is_file()}
LAUNCH_FLAGS = {f"--{flag_name(each)}" for each in OPTIONS}
EIGHT_GPUS = HostDevices(tuple(range(8)), 8, 8)
# Flags of other programs; the first is of our tests.
FOREIGN = {"--client-table", "--link-table", "--no-cache-dir", "--shuffle", "--vllm-pd-disaggregation"}


def command_lines(text: str) -> list[list[str]]:
    """Return the words of each code line that runs one of our commands, without prompts and comments."""
    code = re.findall(r"^ {4}(\S.*)$", text, re.MULTILINE)
    code += [line for block in re.findall(r"```(?:sh|bash)\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
    code += re.findall(r"`([^`\n]+)`", text)
    found = [
        re.search(r"(?:app\.py|pontil|scripts/[\w.]+\.(?:py|sh))(?: .*|$)", line.partition(" #")[0]) for line in code
    ]
    return [shlex.split(one[0]) for one in found if one]


def flags(words: list[str]) -> set[str]:
    """Return the flags of the command itself; after `--` come another program's."""
    words = words[: words.index("--")] if "--" in words else words
    return {word.partition("=")[0] for word in words if re.match(r"--[a-z]", word)}


def with_sourced(script: str) -> str:
    """Return the script's text with that of the scripts that it sources."""
    text = SCRIPTS[script]
    return "\n".join([text, *(SCRIPTS[one] for one in re.findall(r'^\. "\$\(dirname "\$0"\)/([\w.]+)"', text, re.M))])


def parse(command: str, words: list[str]) -> None:
    """Parse like the command line, without running the command. Raises click's errors."""
    with cli.commands[command].make_context(command, words) as context:
        given = {name: value for name, value in context.params.items() if name not in ("config", "dry_run", "as_json")}
        if command in ("launch", "config", "doctor"):
            read_options(given)


@EVERY_PAGE
def test_command_lines_are_understood(path: Path) -> None:  # D9
    for program, *words in command_lines(path.read_text()):
        if program.startswith("scripts/"):
            assert program.removeprefix("scripts/") in SCRIPTS, program
            known = with_sourced(program.removeprefix("scripts/"))
            assert all(flag in known for flag in flags(words)), (program, words)
        elif words and words[0] in cli.commands:
            try:
                parse(words[0], words[1:])
            except click.exceptions.Exit as end:
                assert end.exit_code == 0, words
            except click.MissingParameter:
                pass  # a sentence that only names the command


@EVERY_PAGE
def test_flags_exist(path: Path) -> None:  # D9
    known = LAUNCH_FLAGS | FOREIGN | {"--help"}
    known |= {
        name for command in cli.commands.values() for one in command.params for name in (*one.opts, *one.secondary_opts)
    }
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]", path.read_text()))
    assert not {flag for flag in named - known if not any(flag in text for text in SCRIPTS.values())}


@EVERY_PAGE
def test_files_exist(path: Path) -> None:
    """Paths in code resolve in full, below tests/, or as a unique suffix."""
    rooms = "launcher|runtime|gpu_ops|http|tests|scripts|docs"
    named = set(re.findall(rf"`((?:{rooms})/[\w./-]+)`", path.read_text()))
    named -= set(re.findall(r"^Create `([^`]+)`:", path.read_text(), re.MULTILINE))
    assert not {name for name in named if not [*ROOT.glob(f"{name}*"), *ROOT.glob(f"tests/{name}")]}


def needed(graph: GraphModel) -> set[str]:
    """Return the stages that every placement names."""
    return {node.name for node in graph.nodes if not node.optional}


@EVERY_PAGE
def test_configuration_files_are_read(path: Path, tmp_path: Path) -> None:  # D9
    for number, block in enumerate(re.findall(r"```toml\n(.*?)```", path.read_text(), re.DOTALL)):
        file = tmp_path / f"{number}.toml"
        file.write_text(block)
        stages = {key.partition(".")[0] for key in load_toml(file)}
        graph = next((one for one in GRAPHS.values() if needed(one) <= stages <= set(one.node_names)), None)
        if graph is None:
            read_options({}, file)
        else:
            plan(read_options({"model": graph.name, "placement": str(file)}), EIGHT_GPUS, tmp_path, tmp_path)


def test_the_diagram_is_that_of_the_command() -> None:
    page = (ROOT / "docs" / "internals" / "adding-a-model-of-stages.md").read_text()
    (drawn,) = re.findall(r"```mermaid\n(.*?)```", page, re.DOTALL)
    (model,) = re.findall(r"^ {4}python app\.py graph --model (\S+)$", page, re.MULTILINE)
    assert CliRunner().invoke(cli, ["graph", "--model", model]).output == drawn


def test_the_readme_is_short_and_its_figure_was_measured() -> None:
    readme = (ROOT / "README.md").read_text()
    assert len(readme.split()) <= 600
    (figure,) = re.findall(r"^\| [^|\n]+ \| pontil.*\n(?:\|.*\n)+", readme, re.MULTILINE)
    today = (ROOT / "docs" / "measurements.md").read_text().partition("## Today")[2].partition("\n## ")[0]
    assert figure in today


def test_what_holds_today_is_one_page_of_figures() -> None:
    """The diary is on a page of its own."""
    assert len((ROOT / "docs" / "measurements.md").read_text().splitlines()) <= 200


def test_every_page_opens_with_what_it_is_for() -> None:
    """A page has a heading and a paragraph that begins on the third line; decisions begin with their context."""
    pages = [path for path in PAGES if not re.match(r"\d{3}-", path.name)]
    assert not [path for path in pages if not re.match(r"# \S.*\n\n[A-Z\w].*\n", path.read_text())]


CODE = re.compile(r"^```.*?^```|^ {4}[^\n]*$|`[^`\n]*`", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")
# A page or folder below docs/; a decision may be named by its number alone. Excludes ggml/docs/….
MENTION = re.compile(r"(?<![\w/.-])docs/[\w./-]*\w")
DECISION = re.compile(r"\bdecisions?[ /](\d{3})\b((?:(?:, | and )\d{3}\b)*)", re.IGNORECASE)


def anchors(page: Path) -> set[str]:
    """Return the anchors of the page's headings in GitHub's form: lower case, no punctuation, hyphens for blanks."""
    text = CODE.sub(lambda code: "" if code[0].startswith(("```", "    ")) else code[0].strip("`"), text_of(page))
    heads = re.findall(r"^#{1,6} (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def links_resolve(page: Path, root: Path = ROOT) -> None:
    """Check links to files of the project and to headings in them; links in code do not count."""
    for link in LINK.findall(CODE.sub("", text_of(page))):
        target, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        there = (page.parent / target).resolve() if target else page
        assert there.exists() and there.is_relative_to(root), f"{link} leads nowhere"
        assert not anchor or anchor in anchors(there), f"{link}: no such heading"


def mentions_resolve(path: Path) -> None:
    text = text_of(path)
    for name in MENTION.findall(text):
        is_decision = re.fullmatch(r"docs/decisions/\d{3}", name)
        there = [*ROOT.glob(f"{name}-*.md")] if is_decision else [one for one in [ROOT / name] if one.exists()]
        assert there, f"{name} is not there"
    for first, others in DECISION.findall(text):
        for number in (first, *re.findall(r"\d{3}", others)):
            assert [*(ROOT / "docs" / "decisions").glob(f"{number}-*.md")], f"there is no decision {number}"


def test_links_lead_somewhere() -> None:
    each([path for path in texts() if path.suffix == ".md"], links_resolve)


def test_pages_and_decisions_that_are_mentioned_exist() -> None:
    each(texts(), mentions_resolve)


def test_every_decision_is_in_the_index() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = re.findall(r"^\| \[(\d{3})\]\((\S+)\) \| \S", (folder / "README.md").read_text(), re.MULTILINE)
    assert listed == [(path.name[:3], path.name) for path in sorted(folder.glob("[0-9]*.md"))]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("See [it](other.md), [this](#what-it-is-a-test) and `[not](that)`.\n\n    [code](is-none)\n", None),
        ("    code\n\nSee [it](no-such-page.md).\n", "leads nowhere"),
        ("See [it](../../).\n", "leads nowhere"),
        ("See [it](#there).\n", "no such heading"),
        ("See [it](other.md#what-it-is-a-test).\n", "no such heading"),
    ],
)
def test_a_dead_link_is_seen(text: str, wrong: str | None, tmp_path: Path) -> None:
    page, other = tmp_path / "page.md", tmp_path / "other.md"
    other.write_text("# Other\n")
    page.write_text(f"# What `it` is: a test\n\n{text}")
    with pytest.raises(AssertionError, match=wrong) if wrong else nullcontext():
        links_resolve(page, tmp_path)


@pytest.mark.parametrize("text", [f"`docs{'/'}no-such-page.md`", f"docs/decisions/{999}", f"Decisions 001, {998}"])
def test_a_dead_mention_is_seen(text: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("See decision 001, docs/measurements.md and ggml/docs/gguf.md.")
    mentions_resolve(page)
    page = tmp_path / "wrong.md"
    page.write_text(f"See {text}.")
    with pytest.raises(AssertionError):
        mentions_resolve(page)


def test_what_is_wrong_is_seen() -> None:
    text = "    python app.py launch --prefil cpu   # a note\n\nSee `app.py status --url x` and `scripts/no.py --x`.\n"
    (wrong, status, script) = command_lines(text)
    assert script[0] == "scripts/no.py" and flags(script) == {"--x"}
    with pytest.raises(click.UsageError, match="--prefil"):
        parse(wrong[1], wrong[2:])
    with pytest.raises(OptionError, match="--dtype"):
        parse("launch", ["--dtype", "int3"])
    parse(status[1], status[2:])
