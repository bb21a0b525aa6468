"""Metrics have their names from one module: no file writes one out, and none is read that nothing records."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from grpo_tui.configs import metric_names as metric

ROOT = Path(__file__).parents[2]
PRODUCT = ("api", "configs", "envs", "rewards", "engine", "tui")
RECORDING = ("rewards", "engine/rollouts", "engine/record", "engine/training", "engine/online")
"""The folders whose files record metrics; those of others only read, or name what others' dumps hold."""

NAMES = {key: name for key, name in vars(metric).items() if key.isupper() and isinstance(name, str)}
FAMILIES = {key: family for key, family in vars(metric).items() if isinstance(family, metric.Family)}


WHOLE = frozenset(NAMES.values())
PREFIXES = tuple(family.prefix for family in FAMILIES.values())


@cache
def tree_of(path: Path) -> ast.AST:
    return ast.parse(path.read_text(encoding="utf-8"))


def trees(*folders: str) -> Iterator[tuple[Path, ast.AST]]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path.name != "metric_names.py":
                yield path, tree_of(path)


def is_a_name(text: str) -> bool:
    return text in WHOLE or text.startswith(PREFIXES)


def test_no_file_writes_a_name_out():
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.value}"
        for path, tree in trees(*PRODUCT)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and is_a_name(node.value.strip())
    ]
    assert wrong == []


def used(*folders: str) -> set[str]:
    """Which constants of the module the files name: `metric.KL_MEAN`."""
    return {
        node.attr
        for _, tree in trees(*folders)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "metric"
    }


def test_every_name_is_one_that_something_records():
    assert sorted((NAMES.keys() | FAMILIES.keys()) - used(*RECORDING)) == []


def test_names_differ_and_each_says_what_it_is():
    assert len(set(NAMES.values())) == len(NAMES)
    assert metric.MEANINGS.keys() == {*NAMES.values(), *(family.prefix for family in FAMILIES.values())}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("kl/mean", metric.MEANINGS["kl/mean"]),
        ("rewards/raw/task", metric.MEANINGS["rewards/raw/"]),
        ("trl/completions/mean_length", metric.MEANINGS["trl/"]),
        ("my/own", ""),
    ],
)
def test_the_meaning_of_a_metric_is_that_of_its_name_or_family(name: str, said: str):
    assert metric.meaning(name) == said
