"""A person's whole session in a real pseudo-terminal, keys only."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path

from grpo_tui.engine.launch import find_run
from grpo_tui.engine.runs.reader import RunReader

from .terminal import Terminal
from .world import variables

MINUS = "−"
COMMAND = (sys.executable, "-m", "grpo_tui.tui.cli")
STEPS = 990
"""More than the test lasts."""


def write_config(project: Path, model: Path) -> None:
    (project / "calc.yaml").write_text(
        f"model: {{base: {json.dumps(str(model))}, sft_adapters: null, device: cpu}}\n"
        "environment: {class_path: grpo_tui.envs.calculator.CalculatorEnv, train_tasks: 16, eval_tasks: 0}\n"
        f"training: {{max_steps: {STEPS}, prompts_per_step: 4, num_generations: 4, max_turn_tokens: 8}}\n"
    )


def terminal(project: Path, *arguments: str) -> Terminal:
    return Terminal([*COMMAND, *arguments], cwd=project, env=variables())


def step_on(screen: str) -> int:
    found = re.search(rf"step (\d+)/{STEPS}", screen)
    assert found, screen
    return int(found.group(1))


def test_train_leave_come_back_stop_and_read_why_a_step_was_penalised(project: Path, model: Path):
    write_config(project, model)
    runs = project / "runs"

    with terminal(project, "train", "calc.yaml", "--run-id", "session") as screen:
        screen.see("running", "reward", "penalty", "ANSWER", within=120)
        screen.press("q")
        assert screen.wait() == 0
        assert "run session goes on" in screen.text
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
        screen.press("penalty:unparsable_call\r")
        screen.settle()
        screen.press("\r")
        screen.see("step 1/", "reward of this step")
        screen.press("l")  # the next step
        screen.see("step 2/")
        shown = screen.settle()
        with RunReader(runs / "session") as reader:
            found = reader.page(filter="penalty:unparsable_call", limit=1)[0]
            breakdown = reader.trajectory(found.n).breakdown
        assert breakdown is not None
        (penalty,) = breakdown.steps[1].penalties
        words = " ".join(re.sub(r"[│╭╮╰╯]", " ", shown).split())
        assert f"✗ unparsable call {MINUS}{abs(penalty.amount):.2f}" in words
        assert "saw: text" in words and "limit: one JSON object with name and" in words
        assert "why: No call could be read" in words
        assert "right: End the turn with one JSON object" in words
        assert f"Σ step {MINUS if breakdown.steps[1].total < 0 else ''}{abs(breakdown.steps[1].total):.2f}" in words
        screen.press("q")
        assert screen.wait() == 0


def test_doctor_says_what_the_terminal_can_show(project: Path):
    with terminal(project, "doctor") as screen:
        assert screen.wait(within=120) == 0
        for expected in ("terminal xterm-256color, 160 × 48", "16 million colours", "half blocks"):
            assert expected in screen.text
