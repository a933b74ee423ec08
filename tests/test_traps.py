# SPDX-License-Identifier: Apache-2.0
"""Static checks for common traps: threads, globals, busy waits, timeouts, sockets."""

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from source_tree import each, nodes_of, text_of, tree_of

ROOT = Path(__file__).resolve().parent.parent
CODE = sorted(path for room in ("launcher", "runtime", "gpu_ops", "http") for path in (ROOT / room).rglob("*.py"))

LONGEST = 3600.0
TIME = re.compile(
    r"TIMEOUT|TTL|LEASE|DEADLINE|TOTAL|GRACE|SECONDS|PATIENCE|LINGER|STALL|BEAT|DELAY|WINDOW|PAUSE|WITHIN"
)
SETTINGS = re.compile(r"(Config|Options|Limits|Policy|Deadlines)$")
FLAG = re.compile("stopping|closing|closed|serving|draining|running")
# Calls that a loop may wait in. A supervisor's `run_once`, a worker's `turn` and a server's `answer` wait in one of the
# others.
WAITS = {"wait", "select", "poll", "get", "accept", "recv", "recv_into", "input", "sleep", "run_once", "turn", "answer"}
# Base classes whose API requires a list or a set in the class body.
DECLARED = {"Extension", "ctypes.Structure"}
# Modules that may poll what cannot be signalled: another process's lock or counts, a device.
POLLS = (
    "runtime/foundation/file_lock.py", "launcher/commands/usage.py", "gpu_ops/kernels/compile/build.py",
    "gpu_ops/device_mark.py",
)  # fmt: skip
CHANGES = {
    "add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem", "popleft", "remove",
    "setdefault", "sort", "update",
}  # fmt: skip
STARTERS = {"Thread", "GuardedThread", "TurnThread", "JobThread"}
# Threads that wait where `close` wakes them, and joins them within a time.
CLOSED = {"TurnThread", "JobThread"}
CLOCKS = {"time", "secrets"}
CACHES = {"lru_cache", "cache"}
MUTABLE = {"list", "dict", "set", "deque", "defaultdict", "Counter", "OrderedDict"}


def called(node: ast.AST) -> str | None:
    """Return the last part of a call's name."""
    return last_name(node.func) if isinstance(node, ast.Call) else None


def last_name(node: ast.AST) -> str | None:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None


def first_name(node: ast.AST) -> str | None:
    """Return the name that an expression begins with. It is found in much less time than the text of all of it."""
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None


def threads(tree: ast.AST) -> list[ast.Call]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call) and called(node) in STARTERS]


def is_of_the_launcher(path: Path) -> bool:
    """Return whether the file is of the launcher, which may import nothing of runtime/. A thread of its own that fails
    ends the child: `roles.py`."""
    return path.is_relative_to(ROOT / "launcher")


def is_join_of_a_thread(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "join":
        return False
    return ast.unparse(node.func.value).endswith("thread")


def closed_threads(owner: ast.ClassDef) -> list[str]:
    """Return the attributes of a class that hold threads with a `close` of their own."""
    assigned = [node for node in ast.walk(owner) if isinstance(node, ast.Assign | ast.AnnAssign)]
    held = [node for node in assigned if node.value is not None and called(node.value) in CLOSED]
    return [ast.unparse(node.target if isinstance(node, ast.AnnAssign) else node.targets[0]) for node in held]


def every_thread_is_stopped_and_joined(path: Path) -> None:
    """Every thread is started by a class that joins it; that the threads end is tested with these classes."""
    made = [node for node in nodes_of(path) if called(node) in STARTERS]
    if not made:
        return
    classes = [node for node in tree_of(path).body if isinstance(node, ast.ClassDef) and threads(node)]
    assert len(made) == sum(len(threads(one)) for one in classes), "a thread that no class owns"
    for one in classes:
        for thread in threads(one):
            given = {keyword.arg: ast.unparse(keyword.value) for keyword in thread.keywords}
            is_guarded = called(thread) != "Thread" or is_of_the_launcher(path)
            assert is_guarded, f"{one.name}: a thread that may end in silence, see runtime/threads.py"
            is_named = called(thread) != "Thread" or (given.get("daemon") == "True" and "name" in given)
            assert is_named, f"{one.name}: {ast.unparse(thread)}"
        closed = closed_threads(one)
        calls = {ast.unparse(node.func) for node in ast.walk(one) if isinstance(node, ast.Call)}
        for held in closed:
            assert f"{held}.close" in calls, f"{one.name} does not close {held}"
        joins = [node for node in ast.walk(one) if isinstance(node, ast.Call) and is_join_of_a_thread(node)]
        is_joined = joins or len(closed) == len(threads(one))
        assert is_joined and all(join.args or join.keywords for join in joins), f"{one.name} may wait for ever"
        assert not [node for node in ast.walk(one) if is_endless(node)], f"{one.name} has a loop without a condition"


def test_every_thread_is_stopped_and_joined() -> None:  # D5
    each(CODE, every_thread_is_stopped_and_joined)


def is_endless(node: ast.AST) -> bool:
    return isinstance(node, ast.While) and isinstance(node.test, ast.Constant)


def nothing_global_changes(path: Path) -> None:
    shared = set(names_of_module(tree_of(path)))
    for node in nodes_of(path):
        assert not isinstance(node, ast.Global), f"line {node.lineno}: global"
        assert not (isinstance(node, ast.FunctionDef) and caches(node)), "a cache that the whole process shares"
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            changed = set(changes(node)) & shared
            changed -= locals_of(node) if changed else set()
            assert not changed, f"{node.name} changes {changed}"
        if isinstance(node, ast.ClassDef) and not DECLARED & set(map(ast.unparse, node.bases)):
            kept = [ast.unparse(part) for part in node.body if is_kept_by_a_class(part)]
            assert not kept, f"{node.name} has values that all its instances change"


def test_nothing_global_changes() -> None:  # D6
    each(CODE, nothing_global_changes)


def names_of_module(tree: ast.Module) -> Iterator[str]:
    """Yield names at the top level of a module, imported or assigned there."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name))


def locals_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    arguments = {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
    stored = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return arguments | stored


def changes(function: ast.AST) -> Iterator[str]:
    """Yield names whose value is changed in place."""
    for node in ast.walk(function):
        changed = None
        if isinstance(node, ast.Subscript | ast.Attribute) and not isinstance(node.ctx, ast.Load):
            changed = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
            changed = node.func.value
        if isinstance(changed, ast.Name):
            yield changed.id


def caches(function: ast.FunctionDef) -> bool:
    return any(CACHES & set(re.findall(r"\w+", ast.unparse(one))) for one in function.decorator_list)


def is_kept_by_a_class(part: ast.stmt) -> bool:
    """Return whether a class body holds a mutable value that all instances share."""
    if not isinstance(part, ast.Assign | ast.AnnAssign) or part.value is None:
        return False
    return isinstance(part.value, ast.List | ast.Dict | ast.Set) or called(part.value) in MUTABLE


def no_loop_waits_busily(path: Path) -> None:
    """Loops that end from outside block in a call that wakes them; nothing sleeps for a fixed time."""
    for node in nodes_of(path):
        if isinstance(node, ast.While) and ends_from_outside(node.test):
            inside = list(ast.walk(node))
            waits = any(called(one) in WAITS or isinstance(one, ast.Await | ast.Yield) for one in inside)
            assert waits, f"line {node.lineno}: while {ast.unparse(node.test)}"
        if isinstance(node, ast.Call) and called(node) == "sleep" and ast.unparse(node.func) == "time.sleep":
            assert path.as_posix().endswith(POLLS), f"line {node.lineno}: wait for something"


def test_no_loop_waits_busily() -> None:  # D10
    each(CODE, no_loop_waits_busily)


def ends_from_outside(test: ast.expr) -> bool:
    """True for `while True` or a flag that another thread sets."""
    if isinstance(test, ast.BoolOp):
        return any(map(ends_from_outside, test.values))
    if isinstance(test, ast.UnaryOp):
        return ends_from_outside(test.operand)
    if called(test) == "is_set":
        return True
    return isinstance(test, ast.Constant) or (isinstance(test, ast.Attribute) and bool(FLAG.search(test.attr)))


def no_wait_loses_a_cancellation(path: Path) -> None:
    """Before Python 3.12 `asyncio.wait_for` returns what comes together with a cancellation, and the task goes on."""
    for node in nodes_of(path):
        if isinstance(node, ast.Call) and called(node) == "wait_for":
            assert "asyncio" not in ast.unparse(node.func), f"line {node.lineno}: {ast.unparse(node.func)}"


def test_no_wait_loses_a_cancellation() -> None:
    served = [
        path for path in CODE if path.is_relative_to(ROOT / "http") or path.is_relative_to(ROOT / "runtime" / "proxy")
    ]
    each(served, no_wait_loses_a_cancellation)


def no_time_is_absurd(path: Path) -> None:
    """Times in constants and defaults are positive and at most an hour; they are found by name."""
    for name, value in times(path):
        assert 0 < value <= LONGEST, f"{name} = {value}"


def test_no_time_is_absurd() -> None:  # D15
    each(CODE, no_time_is_absurd)


def times(path: Path) -> Iterator[tuple[str, float]]:
    for node in tree_of(path).body:
        if isinstance(node, ast.Assign) and TIME.search(ast.unparse(node.targets[0])):
            yield from ((ast.unparse(node.targets[0]), value) for value in number_in(node.value))
        elif isinstance(node, ast.ClassDef) and SETTINGS.search(node.name):
            for part in node.body:
                if isinstance(part, ast.AnnAssign) and part.value and ast.unparse(part.annotation) == "float":
                    yield from ((ast.unparse(part.target), value) for value in number_in(part.value))


def number_in(value: ast.expr) -> list[float]:
    """Return the number literal, also as the default of an option; empty without one."""
    if isinstance(value, ast.Call) and called(value) == "option":
        value = value.args[1]
    if isinstance(value, ast.Constant) and isinstance(value.value, int | float):
        return [float(value.value)]
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult):
        return [left * right for left in number_in(value.left) for right in number_in(value.right)]
    return [-number for number in number_in(value.operand)] if isinstance(value, ast.UnaryOp) else []


def test_times_are_found() -> None:
    """The check above finds some times."""
    found = {name for path in CODE for name, _ in times(path)}
    assert {"kv_lease", "TTL", "HANDSHAKE_TIMEOUT", "first_byte_timeout", "drain_timeout", "silence", "window"} <= found


def no_socket_drops(path: Path) -> None:
    """No socket may drop silently: a publisher drops beyond its high-water mark, a router drops what it cannot route
    unless told otherwise."""
    kinds = set(re.findall(r"zmq\.(PUB|SUB|XPUB|XSUB|PUSH|PULL|RADIO|DISH|CONFLATE)\b", text_of(path)))
    assert not kinds
    if "zmq.ROUTER" in text_of(path):
        assert "setsockopt(zmq.ROUTER_MANDATORY, 1)" in text_of(path)


def test_no_socket_drops() -> None:  # D20, B12
    each(CODE, no_socket_drops)


def time_and_chance_are_looked_up(path: Path) -> None:
    """Time is read as `time.x()` and randomness as `secrets.x()`, looked up at each use: to replace these replaces them
    everywhere. A generator made from a seed is no randomness."""
    for node in nodes_of(path):
        assert not (isinstance(node, ast.ImportFrom) and node.module in CLOCKS | {"random"}), f"line {node.lineno}"
        if isinstance(node, ast.Attribute) and first_name(node) in {"random", "datetime", "os", "uuid"}:
            name = ast.unparse(node)
            assert not name.startswith("random.") or name == "random.Random", f"line {node.lineno}: {name}"
            assert name not in {"datetime.now", "os.urandom", "uuid.uuid4"}, f"line {node.lineno}: {name}"
    for node in evaluated_at_import(tree_of(path)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in CLOCKS:
            raise AssertionError(f"line {node.lineno}: {ast.unparse(node)} is bound when the module is imported")


def threads_of_an_event_loop_are_its_own(path: Path) -> None:
    """Work beside an event loop goes to its own executor, by `run_in_executor(None, …)` or `asyncio.to_thread`."""
    for node in nodes_of(path):
        made = last_name(node) or ""
        assert not made.endswith("PoolExecutor"), f"{made}: a pool that the loop does not know"
        if isinstance(node, ast.Call) and called(node) == "run_in_executor":
            assert ast.unparse(node.args[0]) == "None", f"line {node.lineno}"


def test_threads_of_an_event_loop_are_its_own() -> None:
    each(CODE, threads_of_an_event_loop_are_its_own)


def evaluated_at_import(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a module that its import evaluates: bodies of classes, defaults, but no body of a function."""
    children: Iterator[ast.AST] = ast.iter_child_nodes(node)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        children = iter([*node.args.defaults, *(one for one in node.args.kw_defaults if one is not None)])
    for child in children:
        yield child
        yield from evaluated_at_import(child)


def test_time_and_chance_are_looked_up() -> None:
    each(CODE, time_and_chance_are_looked_up)


def marks_are_of_tests(path: Path) -> None:
    """Marks are at tests: at a helper before one, a mark selects nothing and pytest says nothing."""
    if "pytest.mark." not in text_of(path):
        return
    for node in tree_of(path).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("test"):
            marks = [one for one in node.decorator_list if ast.unparse(one).startswith(("pytest.mark.", "LONG"))]
            assert not marks, f"line {node.lineno}: {node.name} is no test"


def test_marks_are_of_tests() -> None:
    each(sorted((ROOT / "tests").rglob("test_*.py")), marks_are_of_tests)


JOBS = "JobThread(self.work, 'n')"
THREAD = "GuardedThread(self.run, 'n')"
UNGUARDED = "threading.Thread(target=self.run, name='n', daemon=True)"


@pytest.mark.parametrize(
    ("lint", "source"),
    [
        (every_thread_is_stopped_and_joined, f"def go():\n    {THREAD}.start()"),
        (every_thread_is_stopped_and_joined, f"class A:\n    t = {THREAD}"),
        (
            every_thread_is_stopped_and_joined,
            f"class A:\n    t = {THREAD}\n    def close(self): self.thread.join()",
        ),
        (
            every_thread_is_stopped_and_joined,
            f"class A:\n    t = {THREAD}\n    def run(self):\n        while 1: self.thread.join(5)",
        ),
        (
            every_thread_is_stopped_and_joined,
            f"class A:\n    t = {UNGUARDED}\n    def close(self): self.thread.join(5)",
        ),
        (every_thread_is_stopped_and_joined, f"class A:\n    def f(self): self.jobs = {JOBS}"),
        (
            every_thread_is_stopped_and_joined,
            f"class A:\n    def f(self): self.jobs = {JOBS}\n    def close(self): self.file.close()",
        ),
        (nothing_global_changes, "X = None\ndef f():\n    global X\n    X = 1"),
        (nothing_global_changes, "X = {}\ndef f():\n    X['a'] = 1"),
        (nothing_global_changes, "from a import X\nclass B:\n    def f(self): X.append(1)"),
        (nothing_global_changes, "@functools.lru_cache(maxsize=None)\ndef f(): ..."),
        (nothing_global_changes, "class A:\n    peers: dict[str, int] = {}"),
        (no_loop_waits_busily, "while True:\n    look()"),
        (no_loop_waits_busily, "while self.ready and not self.stopping:\n    look()"),
        (no_loop_waits_busily, "time.sleep(1)"),
        (time_and_chance_are_looked_up, "from time import monotonic"),
        (time_and_chance_are_looked_up, "def f(clock=time.monotonic): ..."),
        (time_and_chance_are_looked_up, "class A:\n    at: float = field(default_factory=time.monotonic)"),
        (time_and_chance_are_looked_up, "def f():\n    return random.random()"),
        (time_and_chance_are_looked_up, "def f():\n    return datetime.now()"),
        (threads_of_an_event_loop_are_its_own, "pool = concurrent.futures.ThreadPoolExecutor(1)"),
        (threads_of_an_event_loop_are_its_own, "def f(loop): return loop.run_in_executor(POOL, print)"),
        (no_wait_loses_a_cancellation, "async def f(event): await asyncio.wait_for(event.wait(), 1)"),
        (no_time_is_absurd, "PULL_TIMEOUT = 86400 * 365"),
        (no_time_is_absurd, "LEASE = 0"),
        (no_time_is_absurd, "class Limits:\n    silence: float = 1e9"),
        (no_socket_drops, "context.socket(zmq.PUSH)"),
        (no_socket_drops, "context.socket(zmq.ROUTER)"),
        (marks_are_of_tests, "@pytest.mark.long\ndef helper(): ..."),
    ],
)
def test_the_lints_see_what_they_are_for(lint: Callable[[Path], None], source: str, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(source)
    with pytest.raises(AssertionError):
        lint(tmp_path / "bad.py")
