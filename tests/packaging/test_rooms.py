"""Who may import whom: the rules of docs/ARCHITECTURE.md, read from the source with `ast`."""

from __future__ import annotations

import ast
import builtins
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("configs", "envs", "rewards", "engine", "tui")

PLAIN_DATA = (
    "envs.trajectory",
    "envs.tools",
    "rewards.breakdown",
    "configs.errors",
    "configs.location",
    "configs.metric_names",
    "configs.plain_data",
)
"""Dataclasses without torch that the record is made of, the root of errors, and the names of metrics."""

BELOW_TRAINING = (
    "configs",
    "envs",
    "rewards",
    "engine.runs",
    "engine.launch",
    "engine.agents",
    "engine.policy",
    "engine.rollouts",
)

MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "configs": (),
    "envs": ("configs", "engine.demonstration.visual"),  # `envs.visual` is its public name
    "rewards": ("configs", "envs"),
    "engine.runs": PLAIN_DATA,
    "engine.imports": (*PLAIN_DATA, "engine.runs", "configs", "rewards.batches", "rewards.diagnosis"),
    "engine.recompute": (
        *PLAIN_DATA,
        "configs",
        "engine.runs",
        "rewards.advantages",
        "rewards.metrics",
        "rewards.penalties",
    ),
    "engine.launch": ("configs", "engine.runs"),
    "engine.evaluation": (*PLAIN_DATA, "configs", "engine.runs", "engine.launch"),
    "engine.agents": (
        "configs",
        "envs",
        "rewards",
        "engine.policy",
        "engine.runs.durable",
        "engine.runs.control.live",
    ),
    "engine.policy": ("configs", "envs", "rewards", "engine.runs.durable"),
    "engine.rollouts": ("configs", "envs", "rewards", "engine.agents", "engine.policy"),
    "engine.record": ("configs", "envs", "rewards", "engine.runs", "engine.policy", "engine.rollouts"),
    "engine.training": (*BELOW_TRAINING, "engine.record", "engine.evaluation", "engine.imports"),
    "engine.demonstration": ("configs", "envs"),
    "engine.online": (*BELOW_TRAINING, "engine.record", "engine.training"),
    "tui": (
        "configs",
        "engine.runs",
        "engine.imports",
        "engine.launch",
        "engine.recompute",
        "engine.evaluation",
        "rewards.advantages",
        "rewards.diagnosis",
    ),
    "api": (
        "configs",
        "engine.runs",
        "engine.imports",
        "engine.launch.outcome",
        "rewards.functions",
        *("recorder", "run_names", "trl_loss", "trl_sources"),  # its own files, by the names that users write
    ),
}
LIGHT = ("tui", "engine.runs", "engine.imports", "engine.launch", "engine.recompute", "engine.evaluation")
HEAVY = ("torch", "transformers", "trl", "peft", "accelerate", "datasets")
LIGHT_AT_IMPORT = (
    "envs",
    "envs.agent",
    "envs.tools",
    "envs.trajectory",
    "rewards",
    "rewards.breakdown",
    "configs",
    "engine",
    "engine.agents",
    "engine.policy",
    "engine.rollouts",
    "engine.record",
    "engine.training",
    "engine.online",
)


def modules(room: str, house: Path = ROOT) -> Iterator[tuple[str, Path]]:
    """Dotted names below `grpo_tui` and files of a room."""
    root = house / room.replace(".", "/")
    for path in sorted(root.rglob("*.py")) if root.is_dir() else [root.with_suffix(".py")]:
        parts = path.relative_to(house).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


@functools.cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All of a file, read once for all tests."""
    return tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))))


@functools.cache
def imports(name: str, path: Path, house: Path = ROOT) -> tuple[tuple[int, str], ...]:
    """Every import in a file, wherever it stands (functions, TYPE_CHECKING), as an absolute dotted name."""
    return tuple(_imports(name, path, house))


def _imports(name: str, path: Path, house: Path) -> Iterator[tuple[int, str]]:
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in nodes(path):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            if node.level == 0:
                yield node.lineno, node.module or ""
                continue
            base = package[: len(package) - node.level + 1]
            target = ".".join([*base, *(node.module or "").split(".")]).strip(".")
            # `from ..engine import runs` names a module, `from ..engine.runs.read.reader import RunReader` does not
            for alias in node.names:
                inner = f"{target}.{alias.name}"
                is_module = (house / inner.replace(".", "/")).is_dir() or (
                    house / f"{inner.replace('.', '/')}.py"
                ).is_file()
                yield node.lineno, f"grpo_tui.{inner if is_module else target}"


def inside(name: str, room: str) -> bool:
    return name == room or name.startswith(f"{room}.")


def room_of(name: str) -> str:
    return next((room for room in MAY_IMPORT if inside(name, room)), name)


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_imports_only_the_rooms_it_may(room: str):
    wrong = []
    for name, path in modules(room):
        if room_of(name) != room:
            continue
        for line, target in imports(name, path):
            inner = target.removeprefix("grpo_tui.")
            if inner == target or room_of(inner) == room or inner == "engine":
                continue
            if not any(inside(inner, allowed) for allowed in MAY_IMPORT[room]):
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {inner}")
    assert wrong == []


NEVER_IMPORTS = {
    "engine.runs": ("tui",),
    "tui.app": ("tui.cli",),
    "tui.app.widgets": ("tui.app.screens", "tui.app.app", "tui.app.shell", "tui.app.data"),
    "tui.app.screens": ("tui.app.app",),
    "tui.app.data": ("tui.app.widgets", "tui.app.screens"),
    **dict.fromkeys(
        (
            f"tui.app.{name}"
            for name in (
                "live_data",
                "live_charts",
                "run_list",
                "curves",
            )
        ),
        ("textual", "rich", "tui.app.widgets", "tui.app.screens"),
    ),
    "tui.app.destinations": ("textual", "rich", "tui.app.widgets", "tui.app.screens"),
}
"""Inside the rooms: drawing knows no reading, screens know destinations and the shell in place of the app."""


def import_graph(house: Path = ROOT, rooms: tuple[str, ...] = ROOMS) -> dict[str, set[str]]:
    """Which file of the product imports which, wherever in the file: in functions and under TYPE_CHECKING as well."""
    known = {name: path for room in rooms for name, path in modules(room, house)}
    graph: dict[str, set[str]] = {}
    for name, path in known.items():
        targets = {target.removeprefix("grpo_tui.") for _, target in imports(name, path, house)}
        graph[name] = (targets & known.keys()) - {name}
    return graph


def circles(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """Sets of files that each reach all others of their set (strongly connected components; Tarjan 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: set[frozenset[str]] = set()

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in graph[name]:
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            at = stack.index(name)
            if len(stack) - at > 1:
                found.add(frozenset(stack[at:]))
            del stack[at:]

    for name in graph:
        if name not in index:
            visit(name)
    return found


def test_no_file_reaches_itself_through_its_imports():
    assert [sorted(c) for c in circles(import_graph())] == []


def test_a_circle_is_found_wherever_its_imports_stand(tmp_path: Path):
    """The test above can fail: one import in a function, one for types only, one plain; a bystander is no part."""
    room = tmp_path / "room"
    room.mkdir()
    (room / "a.py").write_text("def f():\n    from . import b\n")
    (room / "b.py").write_text("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .c import C\n")
    (room / "c.py").write_text("from .a import f\nfrom . import d\n")
    (room / "d.py").write_text("import os\n")
    assert circles(import_graph(tmp_path, ("room",))) == {frozenset({"room.a", "room.b", "room.c"})}


@pytest.mark.parametrize("part", NEVER_IMPORTS)
def test_inside_a_room_no_arrow_points_up(part: str):
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {target}"
        for name, path in modules(part)
        for line, target in imports(name, path)
        if any(inside(target.removeprefix("grpo_tui."), above) for above in NEVER_IMPORTS[part])
    ]
    assert wrong == []


def test_no_screen_imports_another():
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {target}"
        for name, path in modules("tui.app.screens")
        for line, target in imports(name, path)
        if inside(target.removeprefix("grpo_tui."), "tui.app.screens") and target.rpartition(".")[2] not in SHARED
    ]
    assert wrong == []


SHARED = (
    "among_rollouts",
    "base",
    "dialogs",
    "query_list",
    "outline_keys",
    "reading_screen",
    "chart_keys",
    "pager",
)
"""What screens are made with, beside them: none of these is a screen that a destination opens."""


@pytest.mark.parametrize("room", ROOMS)
def test_inside_the_product_imports_are_relative(room: str):
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for _, path in modules(room)
        for node in nodes(path)
        if (isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").startswith("grpo_tui"))
        or (isinstance(node, ast.Import) and any(alias.name.startswith("grpo_tui") for alias in node.names))
    ]
    assert wrong == []


@pytest.mark.parametrize("room", LIGHT)
def test_no_file_of_a_light_room_names_torch(room: str):
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {target}"
        for name, path in modules(room)
        for line, target in imports(name, path)
        if target.split(".")[0] in HEAVY
    ]
    assert wrong == []


def loaded_by(names: list[str], suspects: tuple[str, ...]) -> str:
    """Which of `suspects` a fresh process has loaded after importing all of `names`."""
    code = "import importlib, sys\n"
    code += f"for name in {[f'grpo_tui.{n}' for n in names]!r}: importlib.import_module(name)\n"
    code += f"print(*[m for m in {suspects!r} if m in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.strip()


def test_importing_all_of_the_light_rooms_loads_nothing_heavy():
    names = [name for room in LIGHT for name, _ in modules(room) if not name.endswith("__main__")]
    assert loaded_by(names, HEAVY) == ""


def test_the_packages_and_the_contracts_load_neither_torch_nor_numpy():
    assert loaded_by(list(LIGHT_AT_IMPORT), (*HEAVY, "numpy")) == ""


def test_nothing_is_unpickled():
    """Weights are safetensors, arrays are npz with `allow_pickle=False`."""
    wrong = []
    for room in ROOMS:
        for name, path in modules(room):
            wrong += [
                f"{path.relative_to(ROOT)}:{n}"
                for n, t in imports(name, path)
                if t.split(".")[0] in ("pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal")
            ]
            for node in nodes(path):
                if isinstance(node, ast.keyword) and isinstance(node.value, ast.Constant):
                    bad = (node.arg == "allow_pickle" and node.value.value) or (
                        node.arg == "weights_only" and node.value.value is False
                    )
                    if bad:
                        wrong.append(f"{path.relative_to(ROOT)}:{node.value.lineno}")
    assert wrong == []


def test_what_a_training_script_imports_is_light():
    code = "import importlib, sys, grpo_tui\ngrpo_tui.Recorder, grpo_tui.Rollout\n"
    code += f"print(*[m for m in {(*HEAVY, 'numpy', 'textual', 'typer')!r} if m in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (answer.returncode, answer.stdout.strip()) == (0, ""), answer.stderr


def test_every_error_of_the_product_has_the_one_root():
    """Read from the source: a class that ends in Error derives from another that does, and at the top from the root."""
    wrong = []
    for room in ROOMS:
        for _, path in modules(room):
            for node in nodes(path):
                if isinstance(node, ast.ClassDef) and node.name.endswith("Error") and node.name != "GrpoTuiError":
                    bases = [ast.unparse(base).rpartition(".")[2] for base in node.bases]
                    if not any(b.endswith("Error") and b not in BUILTIN_ERRORS for b in bases):
                        wrong.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}({', '.join(bases)})")
    assert wrong == []


BUILTIN_ERRORS = {name for name in dir(builtins) if name.endswith("Error")}
