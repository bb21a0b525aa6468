"""`check` reads the texts of a dump, not only its rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo_tui.engine.imports import check
from grpo_tui.engine.runs.read.reader import RunReader

Open = Callable[[Path], RunReader]
Row = dict[str, object]


def dump(path: Path, row: Callable[[int, int, int], Row]) -> Path:
    """Write four steps of four groups of four rollouts."""
    rows = [
        {"step": s, "group": f"{g}", "prompt": f"task {s}{g}", "reward": 1, **row(s, g, i)}
        for s in range(1, 5)
        for g in range(4)
        for i in range(4)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.mark.parametrize(("texts", "found"), [(10_000, ["constant_reward"]), (0, [])])
def test_a_fault_of_the_texts_is_found_in_a_dump(
    texts: int, found: list[str], tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
):
    """Every text earns 1. Beyond `TEXTS` rollouts, only rows are read."""
    monkeypatch.setattr(check, "TEXTS", texts)
    reader = opened(dump(tmp_path / "d.jsonl", lambda s, g, i: {"completion": f"text {s} {g} {i}"}))
    diagnosis = check.diagnose(reader)
    assert [f.finding.detector for f in diagnosis.found() if f.grave and not f.cause][: len(found)] == found
    assert ("constant_reward" in diagnosis.unchecked()) == (not found)


def test_earlier_turns_in_a_prompt_do_not_make_it_another_task(tmp_path: Path, opened: Open):
    def later(s: int, g: int, i: int) -> Row:
        earlier = [{"role": "assistant", "content": f"look {i}"}, {"role": "user", "content": f"seen {i}"}]
        prompt = [{"role": "user", "content": f"task {s}{g}"}, *(earlier if i % 2 else [])]
        return {"prompt": prompt, "completion": f"text {s} {g} {i}"}

    found = check.diagnose(opened(dump(tmp_path / "d.jsonl", later))).found()
    assert "mixed_groups" not in {f.finding.detector for f in found}
