"""A user's own environment class, in a file outside the package, trained from a dataset of rows."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from .terminal import Terminal
from .world import grpo_tui, variables, write_world


def test_an_environment_in_a_users_file_trains_from_rows(project: Path, model: Path):
    config = write_world(project, model)
    answer = grpo_tui(project, "train", config.name, "--run-id", "mine")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "step 3/3" in answer.stdout
    assert "run mine finished at step 3" in answer.stdout
    assert "grpo-tui inspect mine" in answer.stdout

    data = json.loads(grpo_tui(project, "inspect", "mine", "--json").stdout)
    assert data["trajectories"] == 3 * 4 * 4
    rows = grpo_tui(project, "inspect", "mine", "--filter", "env:letters", "--json").stdout.splitlines()
    assert len(rows) == 3 * 4 * 4
    assert any("Good day" in json.loads(row)["prompt"] for row in rows)
    first = json.loads(grpo_tui(project, "inspect", "mine", "--trajectory", "1", "--json").stdout)
    assert first["trajectory"]["task"]["letter"] in "aeiou"
    assert first["breakdown"] is not None

    command = [sys.executable, "-m", "grpo_tui.tui.cli", "inspect", "mine"]
    with Terminal(command, cwd=project, env=variables()) as screen:
        screen.see("trajectories", "ended by", "answer")
        screen.press("\r")
        screen.see("once more", "[/red][link=x]here")  # what the environment wrote, as it wrote it
        screen.press("q")
        assert screen.wait() == 0
        assert b"\x1b]0;owned" not in screen.raw and b"\x1b[2J[/red]" not in screen.raw
