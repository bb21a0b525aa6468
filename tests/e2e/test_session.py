"""A person's whole session in a real pseudo-terminal, keys only."""

from __future__ import annotations

import re
import sysconfig
import time
from pathlib import Path

from grpo_tui.engine.launch.find import find_run
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.search.query import Query

from .terminal import Terminal
from .world import variables

MINUS = "−"
COMMAND = (str(Path(sysconfig.get_path("scripts")) / "grpo-tui"),)
"""The console script that pip installed, as a person types it."""
STEPS = 990
"""More than the test lasts."""
SMALL = {
    "training.max_steps": STEPS,
    "training.prompts_per_step": 4,
    "training.num_generations": 4,
    "environment.train_tasks": 64,
    "environment.eval_tasks": 0,
}
"""The default configuration, the tiny policy on the visual environment, with little to do in a step."""


def terminal(project: Path, *arguments: str) -> Terminal:
    return Terminal([*COMMAND, *arguments], cwd=project, env=variables())


def step_on(screen: str) -> int:
    found = re.search(rf"step (\d+)/{STEPS}", screen)
    assert found, screen
    return int(found.group(1))


def right_pane(screen: str) -> str:
    """The words of the rightmost pane, without its borders and line breaks."""
    lines = screen.splitlines()
    left = lines[0].rindex("┬")
    return " ".join(" ".join(line[left + 1 :].strip("│ ") for line in lines[1:-1]).split())


def test_train_leave_come_back_stop_and_read_why_a_step_was_penalised(project: Path):
    runs = project / "runs"
    settings = [f"--set={key}={value}" for key, value in SMALL.items()]

    with terminal(project, "train", "--run-id", "session", *settings) as screen:
        screen.see("running", "reward", "penalty", "SEGMENT_OBJECT_AT", within=120)
        screen.press("q")
        assert screen.wait() == 0
        assert "run session continues" in screen.text
        assert "grpo-tui inspect session" in screen.text and "grpo-tui stop session" in screen.text

    left_at = find_run(runs, "session").step
    end = time.monotonic() + 60
    while find_run(runs, "session").step <= left_at:
        assert find_run(runs, "session").status == "running" and time.monotonic() < end
        time.sleep(0.2)

    with terminal(project, "inspect", "latest") as screen:
        screen.see("running", f"/{STEPS}")
        first = step_on(screen.settle())
        assert first > left_at
        while step_on(screen.settle(limit=1)) <= first:
            assert "running" in screen.text
        screen.press("x")
        screen.see("Stop session?", "Yes, save and stop")
        screen.press("k\r")
        screen.see("stopped", within=120)
        screen.press("q")
        assert screen.wait() == 0
    assert find_run(runs, "session").status == "stopped"

    with terminal(project, "inspect", "session") as screen:
        screen.see("trajectories", "route")
        screen.press("f")
        screen.settle()
        screen.press("penalised\r")
        screen.settle()
        screen.press("\r")
        screen.see("step 1/", "reward of this step")
        with RunReader(runs / "session") as reader:
            breakdown = reader.bodies.trajectory(reader.rollouts.page(Query("penalised"), limit=1)[0].n).breakdown
        assert breakdown is not None
        step = next(i for i, reward in enumerate(breakdown.steps) if reward.penalties)
        screen.press("l" * step)  # to the step that was penalised
        screen.see(f"step {step + 1}/")
        words = right_pane(screen.settle())
        penalty, total = breakdown.steps[step].penalties[0], breakdown.steps[step].total
        assert total is not None
        assert f"✗ {penalty.rule.replace('_', ' ')} {MINUS}{abs(penalty.amount):.2f}" in words
        for key in penalty.saw:
            assert f" {key} " in words[words.index("saw:") :]
        for label, text in (("limit", penalty.limit), ("why", penalty.why), ("right", penalty.right)):
            assert f"{label}: {' '.join(text.split())}" in words
        assert f"Σ step {MINUS if total < 0 else ''}{abs(total):.2f}" in words
        screen.press("q")
        assert screen.wait() == 0


def test_doctor_says_what_the_terminal_can_show(project: Path):
    with terminal(project, "doctor") as screen:
        assert screen.wait(within=120) == 0
        for expected in ("terminal xterm-256color, 160 × 48", "16 million colours", "half blocks"):
            assert expected in screen.text
