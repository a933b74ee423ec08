# SPDX-License-Identifier: Apache-2.0
"""The layout, enforced: which room may import which, what is packaged, and limits on size."""

import ast
import configparser
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import limits
import pytest
from arrows import ARROWS, FOUNDATION, KEEPERS, SHARED
from house import (
    SourceModule,
    circles,
    classes_of,
    imports_of,
    long_signatures,
    repeated_defaults,
    with_inherited,
)
from limits import above
from source_tree import each, nodes_of, text_of, tree_of

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("launcher", "runtime", "gpu_ops", "http")
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MOST_IN_A_ROOM = 16
# A docstring begins with an imperative verb or a noun phrase, so with none of these; nor does a comment with the first.
RELATIVES = {"What", "Whatever", "Who", "Whoever", "Whom", "Whose", "How", "Whether"}
OPENINGS = RELATIVES | {
    "Where",
    "Wherever",
    "When",
    "Which",
    "Why",
    "Of",
    "As",
    "To",
    "By",
    "If",
    "Nobody",
    "Everybody",
}


def python_files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "*.py"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).exists()]


FILES = python_files()
CODE = [path for path in FILES if path.relative_to(ROOT).parts[0] in ROOMS]


def imports(path: Path) -> Iterator[str]:
    """Yield every absolute module name that a file imports, `from a import b` as `a.b`."""
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def module_of(name: str) -> str:
    """Return the path behind an imported name that starts with "pontil.", without its ending: `launcher/host/ports`."""
    parts = name.split(".")[1:]
    while parts and not (ROOT / Path(*parts)).with_suffix(".py").exists():
        parts.pop()
    assert parts, f"{name} is no module"
    return "/".join(parts)


def room_of(module: str) -> str:
    """Return the module's own entry in ARROWS if it has one, else that of its folder."""
    if module in ARROWS and (ROOT / f"{module}.py").exists():
        return module
    return module.rpartition("/")[0]


def allowed(importer: str, module: str) -> bool:
    """Return whether a file may import another; both paths are without their ending."""
    folder, _, name = module.rpartition("/")
    room = room_of(importer)
    if folder == FOUNDATION:
        return not importer.startswith("gpu_ops/")
    top, _, inner = folder.partition("/")
    if top in SHARED and (inner or name) in SHARED[top] and (importer.startswith(f"{top}/") or top in ARROWS[room]):
        return True
    return room_of(module) in ARROWS[room] | {room} or module in ARROWS[room]


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def arrows(path: Path) -> None:
    for module in imports(path):
        if module.startswith("pontil."):
            assert allowed(relative(path).removesuffix(".py"), module_of(module)), f"{relative(path)} imports {module}"
        keeper = KEEPERS.get(module.split(".")[0])
        assert keeper is None or relative(path).startswith(keeper + "/"), f"only {keeper} imports {module}"


def test_arrows() -> None:
    each(CODE, arrows)
    assert {room_of(relative(path).removesuffix(".py")) for path in CODE} == set(ARROWS)


def test_a_room_has_few_files() -> None:
    """Count the files of each folder, without those that make it a package."""
    rooms = Counter(relative(path).rpartition("/")[0] for path in CODE if path.name != "__init__.py")
    assert {room: count for room, count in rooms.items() if count > MOST_IN_A_ROOM} == {}


def test_no_circle_between_rooms() -> None:
    ahead: set[str] = set()
    for room, targets in ARROWS.items():
        assert {target if target in ARROWS else room_of(target) for target in targets} <= ahead, room
        ahead.add(room)


def the_launcher_stays_light(path: Path) -> None:
    heavy = {"torch", "sanic", "zmq", "msgpack", "numpy", "transformers"}
    assert path.name == "roles.py" or not heavy & {name.split(".")[0] for name in imports(path)}


def test_the_launcher_stays_light() -> None:
    each([path for path in CODE if relative(path).startswith("launcher/")], the_launcher_stays_light)


def gpu_ops_knows_tensors_only(path: Path) -> None:
    if path.relative_to(ROOT).parts[0] == "gpu_ops":
        assert not [name for name in imports(path) if name.startswith("pontil.") and "gpu_ops" not in name]


def test_gpu_ops_knows_tensors_only() -> None:
    each(CODE, gpu_ops_knows_tensors_only)


def the_foundation_needs_nothing(path: Path) -> None:
    for name in imports(path):
        assert name.split(".")[0] in sys.stdlib_module_names or FOUNDATION.replace("/", ".") in name, name


def test_the_foundation_needs_nothing() -> None:
    each([path for path in CODE if relative(path.parent) == FOUNDATION], the_foundation_needs_nothing)


def test_every_folder_of_code_is_packaged() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    packages = config["options"]["packages"].split()
    folders = {line.split("=")[0].strip(): line.split("=")[1].strip() for line in
               config["options"]["package_dir"].strip().splitlines()}  # fmt: skip
    tree = {"pontil." + ".".join(path.parent.relative_to(ROOT).parts) for path in CODE}
    assert sorted(tree) == sorted(packages)
    assert folders == {name: name.removeprefix("pontil.").replace(".", "/") for name in packages}


def test_http_and_tests_are_not_packages() -> None:
    assert not (ROOT / "http" / "__init__.py").exists()
    assert not list((ROOT / "tests").rglob("__init__.py"))


def test_one_class_has_one_name() -> None:
    """Class names are unique, tests included, so that a search for one finds one class."""
    places: dict[str, list[str]] = {}
    for path in FILES:
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(relative(path))
    assert not {name: found for name, found in places.items() if len(found) > 1}


def test_every_other_folder_of_code_is_a_package() -> None:
    for path in CODE:
        if relative(path.parent) != "http":
            assert (path.parent / "__init__.py").exists(), path.parent


def size_and_licence(path: Path) -> None:
    text = text_of(path)
    assert text.startswith("# SPDX-License-Identifier: Apache-2.0\n")
    assert len(text.splitlines()) <= MAX_FILE_LINES
    for node in nodes_of(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            assert lines <= MAX_FUNCTION_LINES, f"{node.name} has {lines} lines"


def test_size_and_licence() -> None:
    each(FILES, size_and_licence)


@pytest.fixture(scope="module")
def modules() -> list[SourceModule]:
    return [SourceModule(relative(path), text_of(path), tree_of(path)) for path in CODE]


def test_a_class_has_few_fields(modules: list[SourceModule]) -> None:
    fields = with_inherited(classes_of(modules))
    assert above(fields, limits.MOST_FIELDS, limits.FIELDS, limits.MIRRORS) == {}
    assert limits.MIRRORS.keys() <= fields.keys()


def test_a_function_has_few_parameters(modules: list[SourceModule]) -> None:
    signatures = {name: count for count, name in long_signatures(modules)}
    assert above(signatures, limits.MOST_PARAMETERS, limits.PARAMETERS) == {}


def test_no_circle_of_files(modules: list[SourceModule]) -> None:
    assert circles(imports_of(modules)) == []


def test_a_default_is_typed_once(modules: list[SourceModule]) -> None:
    repeated = {default: len(places) for default, places in repeated_defaults(modules).items()}
    assert above(repeated, 1, limits.DEFAULTS) == {}


def test_what_is_above_a_limit_is_named_and_may_not_grow() -> None:
    counts = {"Small": 2, "Large": 5, "Wire": 9, "Known": 4, "Grown": 5}
    exceptions = {"Known": 4, "Grown": 4, "Small": 3}
    assert above(counts, 3, exceptions, ("Wire",)) == {"Large": 5, "Grown": 5, "Small": 2}


def first_word(text: str) -> str:
    found = re.search(r"\w+", text)
    return "" if found is None else found[0]


def openings(path: Path) -> None:
    for node in nodes_of(path):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node) or ""
            assert first_word(text) not in OPENINGS, f"a docstring begins with {text[:40]!r}"
    lines = [line.strip() for line in text_of(path).splitlines()]
    for before, line in zip(["", *lines], lines, strict=False):
        if line.startswith("# ") and not before.startswith("#"):
            assert first_word(line) not in RELATIVES, f"a comment begins with {line[:40]!r}"


def test_docstrings_say_the_thing_itself() -> None:
    each(FILES, openings)


def test_size_and_licence_of_kernels() -> None:
    for path in (ROOT / "gpu_ops" / "csrc").iterdir():
        text = path.read_text()
        assert text.startswith("// SPDX-License-Identifier: Apache-2.0\n"), path
        assert len(text.splitlines()) <= MAX_FILE_LINES and max(map(len, text.splitlines())) <= 120, path


def nobody_reads_the_environment_or_pickles(path: Path) -> None:
    text = text_of(path)
    names = set(imports(path))
    assert not {"pickle", "marshal", "multiprocessing.shared_memory"} & names
    assert "shell=True" not in text
    if relative(path) != "launcher/options/options.py":
        assert "os.environ" not in text and "getenv" not in text, "read the environment in launcher/options/options.py"


def test_nobody_reads_the_environment_or_pickles() -> None:
    each(CODE, nobody_reads_the_environment_or_pickles)
