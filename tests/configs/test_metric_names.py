"""Metrics have their names from one module: no file writes one out, and none is read that nothing records."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo_tui.configs import metric_names as metric

ROOT = Path(__file__).parents[2]
PRODUCT = ("api", "configs", "envs", "rewards", "engine", "tui")
RECORDING = ("rewards", "engine/rollouts", "engine/record", "engine/training", "engine/online")
"""The folders whose files record metrics; those of others only read, or name what others' dumps hold."""

NAMES = {key: name for key, name in vars(metric).items() if key.isupper() and isinstance(name, str)}
FAMILIES = {key: family for key, family in vars(metric).items() if isinstance(family, metric.Family)}


WRITTEN_OUT = re.compile(
    r"""["'](?P<name>(?:{whole})(?=["'])|(?:{begun})[^"'\n]*)""".format(
        whole="|".join(map(re.escape, NAMES.values())),
        begun="|".join(re.escape(family.prefix) for family in FAMILIES.values()),
    )
)
"""A metric's name, or what begins as those of a family do, in quotes."""
DOCSTRING = re.compile(r'""".*?"""', re.DOTALL)
"""Where an example may stand."""


def files(*folders: str) -> Iterator[tuple[Path, str]]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path.name != "metric_names.py":
                yield path, path.read_text(encoding="utf-8")


def test_no_file_writes_a_name_out():
    wrong = [
        f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, found.start()) + 1} {found['name']}"
        for path, whole in files(*PRODUCT)
        for text in [DOCSTRING.sub(lambda found: "\n" * found[0].count("\n"), whole)]
        for found in WRITTEN_OUT.finditer(text)
    ]
    assert wrong == []


def used(*folders: str) -> set[str]:
    """Which constants of the module the files name: `metric.KL_MEAN`."""
    return {
        node.attr
        for _, text in files(*folders)
        for node in ast.walk(ast.parse(text))
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
