"""`grpo-tui online` in a pipe: requests in, answers out, and nothing else on standard output."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from grpo_tui.engine.launch import find_run

from .world import variables

REQUESTS = 4


def test_requests_from_standard_input_are_answered_on_standard_output(project: Path, model: Path):
    (project / "online.yaml").write_text(
        f"model: {{base: {json.dumps(str(model))}, sft_adapters: null, device: cpu}}\n"
        "environment: {class_path: grpo_tui.envs.calculator.CalculatorEnv, train_tasks: 4, eval_tasks: 0}\n"
        "online: {max_turn_tokens: 8, samples: 2, validation: {enabled: false}}\n"
    )
    task = {"start": 3, "operations": [["add", 4]], "answer": "7"}
    lines = [json.dumps({"id": f"mine-{i}", "task_data": task}) + "\n" for i in range(REQUESTS)]
    answer = subprocess.run(
        [sys.executable, "-m", "grpo_tui.tui.cli", "online", "online.yaml", "--requests", "-", "--run-id", "o"],
        cwd=project,
        env=variables(),
        input="".join(lines),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert answer.returncode == 0, answer.stderr
    answers = [json.loads(line) for line in answer.stdout.splitlines()]
    assert [a["id"] for a in answers] == [f"mine-{i}" for i in range(REQUESTS)]
    assert "run o finished" in answer.stderr
    assert find_run(project / "runs", "o").mode == "online"
