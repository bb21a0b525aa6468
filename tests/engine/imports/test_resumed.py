"""A training that resumes from a checkpoint writes some steps again, to the same file and under the same names."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo_tui.engine.imports.index import Indexer
from grpo_tui.engine.imports.opening import open_dump
from grpo_tui.engine.imports.readers import open_reader
from grpo_tui.engine.runs.read.reader import RunReader

Open = Callable[[Path | str], RunReader]
NAMES: dict[str, Callable[[int, int, int, int], dict[str, Any]]] = {
    "ids": lambda step, g, i, attempt: {"group": f"g{g}", "id": f"{step}-{g}-{i}"},
    "ids of each attempt": lambda step, g, i, attempt: {"group": f"g{g}", "id": f"{step}-{g}-{i}-{attempt}"},
    "indices": lambda step, g, i, attempt: {"group": f"{step}-{g}", "rollout": i},
    "groups": lambda step, g, i, attempt: {"group": f"{step}-{g}"},
    "numbers": lambda step, g, i, attempt: {"group": g},
}


def rows(step: int, attempt: int, name: Callable[[int, int, int, int], dict[str, Any]]) -> list[dict[str, Any]]:
    """Two groups of three rollouts. The attempt is their reward."""
    return [
        {"step": step, "prompt": f"q{g}", "completion": f"a{i}", "reward": attempt, **name(step, g, i, attempt)}
        for g in range(2)
        for i in range(3)
    ]


def write(path: Path, documents: list[dict[str, Any]]) -> None:
    with path.open("a") as file:
        file.write("".join(json.dumps(d) + "\n" for d in documents))


def groups(reader: RunReader) -> list[tuple[int | None, str, int]]:
    """Return step, split and size of each group."""
    found = Counter((row.step, row.split, row.group) for row in reader.rollouts.page(limit=1000))
    return sorted((step, split, size) for (step, split, _), size in found.items())


@pytest.mark.parametrize("sittings", [1, 2, 3])
@pytest.mark.parametrize("name", NAMES)
def test_a_step_that_was_cut_off_and_written_again_counts_once(name: str, sittings: int, tmp_path: Path):
    file, of = tmp_path / "a.jsonl", NAMES[name]
    write(file, [*rows(1, 1, of), *rows(2, 1, of)[:4]])
    again = [*rows(2, 2, of), *rows(3, 2, of)]
    if sittings > 1:
        open_dump(file, whole=True)
    if sittings > 2:  # the second is in the middle of a group
        write(file, again[:2])
        open_dump(file, whole=True)
    write(file, again[2 * (sittings > 2) :])
    with open_reader(open_dump(file, whole=True).folder) as reader:
        replaced = [(2, "replaced", 1), (2, "replaced", 3)]
        trained = [(step, "train", 3) for step in (1, 1, 2, 2, 3, 3)]
        assert groups(reader) == sorted(trained + replaced)
        assert dict(reader.metrics.points("rewards/total/mean")) == {1: 1.0, 2: 2.0, 3: 2.0}
        bodies = [reader.bodies.trajectory(row.n) for row in reader.rollouts.page(limit=100)]
        assert {(b.split, b.trajectory.env_reward) for b in bodies if b.trajectory.group.endswith("(attempt 1)")} == {
            ("replaced", 1.0)
        }


@pytest.mark.parametrize("name", [*NAMES, "no names"])
def test_all_steps_since_a_checkpoint_are_written_again(name: str, tmp_path: Path, opened: Open):
    of = NAMES.get(name, lambda step, g, i, attempt: {})
    write(tmp_path / "a", [r for step in (1, 2, 3) for r in rows(step, 1, of)][:-1])
    write(tmp_path / "a", [r for step in (2, 3, 4) for r in rows(step, 2, of)])
    reader = opened(tmp_path / "a")
    assert [g for g in groups(reader) if g[1] == "train"] == [(step, "train", 3) for step in (1, 1, 2, 2, 3, 3, 4, 4)]
    assert dict(reader.metrics.points("rewards/total/mean")) == {1: 1.0, 2: 2.0, 3: 2.0, 4: 2.0}


def test_what_only_looks_like_a_second_attempt_stays(tmp_path: Path, opened: Open):
    """Ids of tasks, prompts that a batch holds twice, groups that are written in turns, and larger groups."""
    task = [{"step": 1, "group": "g", "id": "task", "prompt": "q", "completion": f"{i}"} for i in range(4)]
    two = [{"step": 1, "group": "b", "id": f"t{i // 2}", "prompt": "q", "completion": f"{i}"} for i in range(4)]
    twice = [{"step": 2, "prompt": "q", "completion": f"{i}", "rollout": i % 2} for i in range(4)]
    turns = [{"step": 3, "group": "xy"[i % 2], "prompt": "q", "completion": f"{i}", "id": f"n{i}"} for i in range(6)]
    turns += [{**row, "id": f"m{row['id']}", "group": "wz"[i // 2 % 2], "step": 4} for i, row in enumerate(turns)]
    larger = [{"step": 4, "group": f"l{i // 4}", "prompt": "q", "completion": f"{i}"} for i in range(12)]
    larger += [{"step": 5, "group": "m", "prompt": "q", "completion": f"{i}"} for i in range(8)]
    for n, part in enumerate((task + two, twice, turns, larger)):
        (tmp_path / f"{n}").mkdir()
        write(tmp_path / f"{n}" / "a.jsonl", part)
        assert {split for _, split, _ in groups(opened(tmp_path / f"{n}"))} == {"train"}, part


def test_a_name_that_is_used_in_each_step_is_a_group_of_each_step(tmp_path: Path, opened: Open):
    name = NAMES["ids of each attempt"]
    write(tmp_path / "a", [*rows(1, 1, name), *rows(2, 1, name)])
    assert groups(opened(tmp_path / "a")) == [(1, "train", 3)] * 2 + [(2, "train", 3)] * 2


def test_a_group_goes_on_in_a_second_sitting(tmp_path: Path):
    """As when a large file is opened: its beginning first, the rest while the app shows it."""
    file = tmp_path / "a.jsonl"
    written = [
        {"step": 1, "group": "g", "id": f"r{i}", "prompt": "q", "completion": "a", "reward": i} for i in range(6)
    ]
    for part in (written[:1], written[1:]):
        write(file, part)
        folder = open_dump(file, whole=True).folder
    with open_reader(folder) as reader:
        assert not reader.problems and groups(reader) == [(1, "train", 6)]


def test_groups_without_a_step_are_not_kept_to_go_on(tmp_path: Path):
    """Their number is that of the dump, and they would be written with each part and read with each opening."""
    write(tmp_path / "a.jsonl", [{"prompt": f"q{i}", "completion": "a", "reward": i} for i in range(9)])
    with Indexer(tmp_path / "a.jsonl", tmp_path / "index") as indexer:
        indexer.advance()
        assert json.loads(indexer.tables.meta("groups") or "")["present"] == [None, []]
