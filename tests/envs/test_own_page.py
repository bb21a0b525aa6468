"""The page "write your own environment" is run as it stands."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "write-your-own-environment.md"

DRIVER = """
import sys
from pathlib import Path
import grpo_tui.envs
from grpo_tui.envs.calls import format_call
from grpo_tui.envs.loading import load_env_class, make_env
sys.path.insert(0, {tests!r})
from scripts import ByteAgent

assert not Path.cwd().is_relative_to(Path({repository!r}))
env = make_env("guess.py:GuessEnv", {{"highest": 16}})
tasks = env.make_tasks("train", 6, seed=0)
assert not {{t["answer"] for t in tasks}} & {{t["answer"] for t in env.make_tasks("eval", 6, seed=0)}}

low, high = [0] * 12, [15] * 12
def bisect(row, turn, said):
    if said and "higher" in said:
        low[row] = int(said.split(":")[0]) + 1
    elif said and "lower" in said:
        high[row] = int(said.split(":")[0]) - 1
    elif said and said.endswith("yes"):
        low[row] = high[row] = int(said.split(":")[0])
    if low[row] >= high[row]:
        return format_call("ANSWER", {{"text": str(low[row])}})
    return format_call("ASK", {{"n": (low[row] + high[row]) // 2}})

done = env.run_trial(tasks, ByteAgent(bisect), 2)["trajectories"]
assert all(t.correct and t.env == "guess" for t in done), [(t.answer, t.expected, t.error) for t in done]
outside = env.run_trial(tasks, ByteAgent(lambda *_: format_call("ASK", {{"n": 200}})), 1)["trajectories"][0]
assert outside.steps[0].observation == "error: n 200 >= 100"
print("fine")
"""


def code_blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_the_example_runs_from_outside_the_package(tmp_path: Path):
    (example,) = code_blocks("python")
    lines = [line for line in example.splitlines() if line.strip()]
    assert len(lines) <= 40
    (tmp_path / "guess.py").write_text(example)
    driver = DRIVER.format(tests=str(Path(__file__).parent), repository=str(PAGE.parents[1]))
    done = subprocess.run([sys.executable, "-c", driver], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "fine", done.stderr


def test_the_rows_on_the_page_are_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from grpo_tui.envs.loading import make_env

    monkeypatch.chdir(tmp_path)
    (tmp_path / "guess.py").write_text(code_blocks("python")[0])
    rows = [
        json.loads(line)
        for block in code_blocks("json")
        for line in block.splitlines()
        if not line.startswith('{"name"')
    ]
    with_class = [r for r in rows if "env_class_path" in r]
    assert len(rows) == 4 and len(with_class) == 2
    for row in with_class:
        state, messages = make_env(row["env_class_path"], row["env_config"]).reset(row["task_data"])
        assert state is not None and messages[0].get("role") == "user"
