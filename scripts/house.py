# SPDX-License-Identifier: Apache-2.0
"""Figures of a checkout's product code, read from its syntax: size, functions, fields, parameters, rooms, circles of
imports, names. A report to compare two checkouts with: `python scripts/house.py`, `python scripts/house.py ../other`.

Tests and scripts are not counted. Nothing here is a limit; those that are enforced are in tests/test_layout.py.
"""

import argparse
import ast
import io
import re
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
ROOMS = ("launcher", "runtime", "http", "gpu_ops")
# Paths that few run: models of several stages, and the tools that measure and disturb a launch.
NEXT_DOOR = re.compile(
    r"runtime/(stages|graph|streams|nodes|models/qwen3_omni|worker/stages)/|launcher/(tools|bench|chaos|conformance)/"
    r"|runtime/(proxy|worker)/(\w*stage\w*|node_\w+|conductor|sound_route|run|run_entry|run_stream|run_metrics"
    r"|open_task|speech_loading)\.py|runtime/wire/graph_messages\.py|runtime/loaders/omni_\w+\.py"
    r"|launcher/plan/(stage_\w+|graph_choice)\.py|launcher/commands/(graph|stage_lines)\.py"
)
# A kernel takes each stride as a parameter of its own.
KERNEL = "triton.jit"
SHORT_FUNCTION, MANY_PARAMETERS, SMALL_MODULE = 20, 8, 60
# Defaults that say "nothing" or "as usual", which many declarations have for reasons of their own.
PLAIN_DEFAULTS = (None, False, True, 0, 1, "", b"", ())
IRREGULAR = re.compile(
    "told|made|wanted|said|kept|own|given|found|seen|known|taken|held|left|sent|shown|written|read|drawn|built|begun"
    "|gone|done|lent|chosen|spoken|heard|met|put|cut|set|spent|bound"
)
PRONOUNS = frozenset({"one", "each", "other", "others", "rest", "more", "all", "both", "these", "those", "what", "who"})
PARTICIPLE = re.compile(r"[a-z]{2,}ed")
# Words that end like a participle and are none.
NO_PARTICIPLES = frozenset({"seed", "speed", "need", "feed", "shed", "embed", "bed", "deed", "weed", "reed", "greed"})
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class SourceModule:
    """One file of the product: its path in the checkout, text and syntax."""

    path: str
    text: str
    tree: ast.Module

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        return tuple(ast.walk(self.tree))

    @property
    def name(self) -> str:
        """The module's name below the package."""
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @property
    def room(self) -> str:
        return self.path.rpartition("/")[0] or "."

    @property
    def is_initial(self) -> bool:
        return self.path.endswith("__init__.py")

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())


@dataclass(slots=True)
class ClassFigures:
    """The name of a class and its place, the names of its bases, its fields and methods."""

    name: str
    path: str = ""
    bases: list[str] = field(default_factory=list)
    fields: set[str] = field(default_factory=set)
    methods: int = 0

    @property
    def title(self) -> str:
        return f"{self.name} ({self.path})"


def modules_of(root: Path) -> list[SourceModule]:
    paths = [root / "app.py", *(path for room in ROOMS for path in (root / room).rglob("*.py"))]
    found = sorted(path for path in paths if path.is_file())
    return [
        SourceModule(str(path.relative_to(root)), text := path.read_text(), ast.parse(text, str(path)))
        for path in found
    ]


def nodes(modules: Sequence[SourceModule]) -> Iterator[tuple[SourceModule, ast.AST]]:
    for module in modules:
        for node in module.nodes:
            yield module, node


def code_lines(module: SourceModule) -> int:
    """Return the number of lines that hold more than a comment or a docstring."""
    found: set[int] = set()
    ignored = (
        tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING,
        tokenize.ENDMARKER,
    )  # fmt: skip
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type not in ignored:
            found.update(range(token.start[0], token.end[0] + 1))
    return len(found - docstring_lines(module.tree))


def docstring_lines(tree: ast.Module) -> set[int]:
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | FunctionNode) and ast.get_docstring(node, clean=False):
            found.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return found


def function_lengths(modules: Sequence[SourceModule]) -> list[int]:
    return [(node.end_lineno or 0) - node.lineno + 1 for _, node in nodes(modules) if isinstance(node, FunctionNode)]


def parameters_of(node: FunctionNode) -> list[str]:
    """Return a function's parameters without `self` and `cls`."""
    declared = node.args
    listed = [*declared.posonlyargs, *declared.args, *declared.kwonlyargs, declared.vararg, declared.kwarg]
    names = [each.arg for each in listed if each is not None]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


def long_signatures(modules: Sequence[SourceModule]) -> list[tuple[int, str]]:
    """Return the functions with many parameters that are no kernels, those with the most first."""
    found = [
        (len(parameters), f"{module.path} {name}")
        for module in modules
        for name, node in functions_of(module.tree)
        if len(parameters := parameters_of(node)) >= MANY_PARAMETERS and not is_kernel(node)
    ]
    return sorted(found, reverse=True)


def is_kernel(node: FunctionNode) -> bool:
    return any(ast.unparse(decorator).startswith(KERNEL) for decorator in node.decorator_list)


def functions_of(outer: ast.AST, place: str = "") -> Iterator[tuple[str, FunctionNode]]:
    """Yield all functions with their names, after those of the classes and functions that they are in."""
    for node in ast.iter_child_nodes(outer):
        if isinstance(node, FunctionNode):
            yield place + node.name, node
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from functions_of(node, f"{place}{node.name}.")
        else:
            yield from functions_of(node, place)


def classes_of(modules: Sequence[SourceModule]) -> list[ClassFigures]:
    return [class_figures(module, node) for module, node in nodes(modules) if isinstance(node, ast.ClassDef)]


def class_figures(module: SourceModule, node: ast.ClassDef) -> ClassFigures:
    """Count what the class declares and what its methods assign to `self`; inherited fields belong to the parent."""
    bases = [ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases]
    found = ClassFigures(node.name, module.path, bases)
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and not of_class(item.annotation):
            found.fields.add(item.target.id)
        if isinstance(item, FunctionNode):
            found.methods += 1
            found.fields.update(assigned_to_self(item))
    return found


def with_inherited(classes: Sequence[ClassFigures]) -> dict[str, int]:
    """Return the number of fields of each class, those of its parents in the product included."""
    named = {figures.name: figures for figures in classes}

    def fields_of(name: str) -> set[str]:
        figures = named.get(name)
        return set() if figures is None else figures.fields.union(*map(fields_of, figures.bases))

    return {name: len(fields_of(name)) for name in named}


def repeated_defaults(modules: Sequence[SourceModule]) -> dict[str, list[str]]:
    """Return the defaults that fields or constructors of several classes give the same name, with these classes."""
    found: dict[str, list[str]] = defaultdict(list)
    for module, node in nodes(modules):
        if isinstance(node, ast.ClassDef):
            for name, default in defaults_of(node):
                if isinstance(default, ast.Constant) and default.value not in PLAIN_DEFAULTS:
                    found[f"{name} = {default.value!r}"].append(f"{module.path} {node.name}")
    return {default: places for default, places in sorted(found.items()) if len(places) > 1}


def defaults_of(owner: ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names and defaults of a class's fields, and of the parameters of its constructor."""
    for item in owner.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and item.value is not None:
            yield item.target.id, declared_default(item.value)
        elif isinstance(item, FunctionNode) and item.name == "__init__":
            listed = [*item.args.posonlyargs, *item.args.args]
            optional = [*listed[len(listed) - len(item.args.defaults) :], *item.args.kwonlyargs]
            for parameter, default in zip(optional, [*item.args.defaults, *item.args.kw_defaults], strict=True):
                if default is not None:
                    yield parameter.arg, default


def declared_default(value: ast.expr) -> ast.expr:
    """Return the default in a declaration of a field or an option, `option(SECTION, 5.0, ...)` say."""
    if not isinstance(value, ast.Call):
        return value
    constants = [argument for argument in value.args[:2] if isinstance(argument, ast.Constant)]
    defaults = [keyword.value for keyword in value.keywords if keyword.arg == "default"]
    return next(iter((*defaults, *constants)), value)


def of_class(annotation: ast.expr) -> bool:
    return "ClassVar" in ast.unparse(annotation)


def assigned_to_self(method: FunctionNode) -> Iterator[str]:
    for node in ast.walk(method):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            yield node.attr


def imports_of(modules: Sequence[SourceModule]) -> dict[str, set[str]]:
    """Return the modules that each imports, in functions and for annotations too, by their names."""
    known = {module.name for module in modules}
    return {
        module.name: {
            target for node in module.nodes for name in imported(node) if (target := nearest(name, known))
        } - {module.name}
        for module in modules
    }  # fmt: skip


def imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def nearest(name: str, known: set[str]) -> str | None:
    """Return the module of the product behind an imported name, None for others."""
    parts = name.split(".")
    if parts[0] != "pontil":
        return None
    while parts and ".".join(parts[1:]) not in known:
        parts.pop()
    return ".".join(parts[1:]) or None


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the groups of nodes that reach each other, the largest first."""
    reached = {start: reachable(graph, start) for start in graph}
    groups = {
        frozenset(other for other in ahead if start in reached.get(other, ())) for start, ahead in reached.items()
    }
    return sorted((sorted(group) for group in groups if len(group) > 1), key=lambda group: (-len(group), group))


def reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    seen, ahead = set[str](), [start]
    while ahead:
        for target in graph.get(ahead.pop(), ()):
            if target not in seen:
                seen.add(target)
                ahead.append(target)
    return seen


def between_rooms(graph: Mapping[str, set[str]], rooms: Mapping[str, str]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {room: set() for room in rooms.values()}
    for name, targets in graph.items():
        found[rooms[name]] |= {rooms[target] for target in targets} - {rooms[name]}
    return found


def small_with_one_importer(modules: Sequence[SourceModule], graph: Mapping[str, set[str]]) -> list[str]:
    importers: dict[str, list[str]] = defaultdict(list)
    for name, targets in graph.items():
        for target in targets:
            importers[target].append(name)
    return [
        module.path
        for module in modules
        if module.lines < SMALL_MODULE and not module.is_initial and len(importers[module.name]) == 1
    ]


def bindings(modules: Sequence[SourceModule]) -> Counter[str]:
    """Return how often each local name is bound: parameters and names that are assigned."""
    found: Counter[str] = Counter()
    for _, node in nodes(modules):
        if isinstance(node, ast.arg) and node.arg not in ("self", "cls"):
            found[node.arg] += 1
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found[node.id] += 1
    return found


def says_little(name: str) -> bool:
    """Return whether a name is a bare participle or pronoun, which leaves out what it is of."""
    participle = PARTICIPLE.fullmatch(name) is not None and name not in NO_PARTICIPLES
    return participle or IRREGULAR.fullmatch(name) is not None or name in PRONOUNS


def rooms_by_files(modules: Sequence[SourceModule]) -> Counter[str]:
    """Return the files of each room, without the empty ones that make a folder a package."""
    return Counter(module.room for module in modules if not module.is_initial)


def report(root: Path, shown: int) -> Iterator[str]:
    """Yield the lines of the report; lists have so many rows."""
    modules = modules_of(root)
    yield from sizes(modules)
    yield from shapes(modules, shown)
    yield from wiring(modules, shown)
    names = bindings(modules)
    little = Counter({name: count for name, count in names.items() if says_little(name)})
    yield (
        f"bindings {names.total()}, of which bare participles and pronouns {little.total()} "
        f"({little.total() / max(1, names.total()):.1%}): {listed(little, shown)}"
    )


def sizes(modules: Sequence[SourceModule]) -> Iterator[str]:
    core = [module for module in modules if not NEXT_DOOR.match(module.path)]
    for name, part in (("product", modules), ("without stages and tools", core)):
        yield (
            f"{name}: {sum(module.lines for module in part)} lines in {len(part)} files, "
            f"{sum(map(code_lines, part))} of code"
        )
    lengths = function_lengths(modules)
    short = sum(length <= SHORT_FUNCTION for length in lengths) / max(1, len(lengths))
    yield (
        f"functions {len(lengths)}, mean length {sum(lengths) / max(1, len(lengths)):.1f}, "
        f"at most {SHORT_FUNCTION} lines {short:.1%}"
    )
    yield f"fmt: skip {sum(module.text.count('# fmt: skip') for module in modules)}"


def shapes(modules: Sequence[SourceModule], shown: int) -> Iterator[str]:
    classes = classes_of(modules)
    fields = Counter({figures.title: len(figures.fields) for figures in classes})
    methods = Counter({figures.title: figures.methods for figures in classes})
    signatures, repeated = long_signatures(modules), repeated_defaults(modules)
    yield f"classes {len(classes)}, with more than 20 fields {sum(count > 20 for count in fields.values())}"
    yield f"most fields: {listed(fields, shown)}"
    yield f"most fields with those of parents: {listed(Counter(with_inherited(classes)), shown)}"
    yield f"most methods: {listed(methods, shown)}"
    yield f"signatures with {MANY_PARAMETERS} parameters or more, without kernels, {len(signatures)}"
    yield from (f"  {count} {where}" for count, where in signatures[:shown])
    yield f"defaults typed twice {len(repeated)}"
    yield from (f"  {default}: {', '.join(places)}" for default, places in list(repeated.items())[:shown])


def wiring(modules: Sequence[SourceModule], shown: int) -> Iterator[str]:
    graph, rooms = imports_of(modules), {module.name: module.room for module in modules}
    files = rooms_by_files(modules)
    yield f"rooms {len(files)}, with more than 16 files {sum(count > 16 for count in files.values())}"
    yield f"fullest rooms: {listed(files, shown)}"
    small = small_with_one_importer(modules, graph)
    yield f"modules under {SMALL_MODULE} lines with one importer {len(small)}"
    for name, found in (("files", circles(graph)), ("rooms", circles(between_rooms(graph, rooms)))):
        yield f"circles of {name} {len(found)}, the largest of {max(map(len, found), default=0)}"
        yield from (f"  {' '.join(circle)}" for circle in found[:shown])


def listed(counts: "Counter[str]", shown: int) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.most_common(shown))


def main() -> None:
    parser = argparse.ArgumentParser(description="Print figures of a checkout's product code.")
    parser.add_argument("path", type=Path, nargs="?", default=HERE, help="the checkout; default: this one")
    parser.add_argument("--rows", type=int, default=10, metavar="N", help="rows of each list")
    given = parser.parse_args()
    for line in report(given.path, given.rows):
        print(line)


if __name__ == "__main__":
    main()
