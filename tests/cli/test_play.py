"""`grpo-tui play`: a person in place of the policy, in a pipe and on a terminal."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from grpo_tui.configs.loading import load_config
from grpo_tui.engine.policy.sources import load_tokenizer
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.training.demonstrations import read_conversations
from grpo_tui.engine.training.play import typed_calls
from grpo_tui.envs.tools import Argument, ToolSpec
from tests.e2e.terminal import Terminal
from tests.forked import forked_processes

from .conftest import Cli

EXAMPLES = Path(__file__).parents[2] / "examples"
LOOK = ToolSpec("LOOK", "", (Argument("x", "integer"), Argument("where", "string", required=False)))
FEW = "--set=environment.train_tasks=16"
"""The default number of tasks takes seconds to make."""
FIND = ToolSpec("web-find", "", (Argument("query", "string"),))


def played(folder: Path, typed: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Play with these lines as standard input."""
    command = [sys.executable, "-m", "grpo_tui.tui.cli", "play", *arguments]
    with forked_processes():
        return subprocess.run(command, cwd=folder, input=typed, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("text", "thought", "calls"),
    [
        ("LOOK(x=1)", "", [("LOOK", {"x": 1})]),
        ("LOOK(1, 'a)b')", "", [("LOOK", {"x": 1, "where": "a)b"})]),
        ("I look. LOOK(x=-2.5); LOOK(x=null)", "I look.", [("LOOK", {"x": -2.5}), ("LOOK", {"x": None})]),
        ('web-find(query="LOOK(x=1)") LOOK()', "", [("web-find", {"query": "LOOK(x=1)"}), ("LOOK", {})]),
        ("LOOK(x=[1, {'a': true}])", "", [("LOOK", {"x": [1, {"a": True}]})]),
        ("LOOK(x=1) and more", "LOOK(x=1) and more", []),
        ("OVERLOOK(x=1)", "OVERLOOK(x=1)", []),
        ("LOOK(x=f(1))", "LOOK(x=f(1))", []),
        ("LOOK(1, 2, 3)", "LOOK(1, 2, 3)", []),
        ("LOOK(x={[1]: 2})", "LOOK(x={[1]: 2})", []),
        ('{"name": "LOOK", "arguments": {"x": 1}}', '{"name": "LOOK", "arguments": {"x": 1}}', []),
        ("plain words", "plain words", []),
    ],
)
def test_calls_as_they_are_typed(text: str, thought: str, calls: list[tuple[str, dict[str, object]]]):
    read = typed_calls(text, [LOOK, FIND])
    assert (read[0], [(call.name, call.arguments) for call in read[1]]) == (thought, calls)


def test_a_rollout_by_hand_is_scored_recorded_and_a_demonstration(tmp_path: Path):
    """Penalties come with their reasons after each turn; the demonstration has the tokens of the rollout."""
    turns = ["SEGMENT_OBJECT_AT(x=1, y=9999)", "nonsense", 'I guess. ANSWER(text="red")']
    typed = "\n".join(["/model", *turns, "/next", "LOOK", "/quit"])
    answer = played(tmp_path, typed, FEW, "--run-id", "mine")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    continued, by_hand = answer.stdout.split("the model's continuation")[1].split("\nΣ steps", 1)
    steps = continued.split("\n─ ")[1:]
    assert steps[0].startswith("1 ─") and "✓ SEGMENT_OBJECT_AT(x=" in steps[0] and "  mask 1" in steps[0]
    assert len(steps) > 1 and "ANSWER" in steps[-1] and "─\n✓ right" in steps[-1], "to the end, with the tools' results"
    first, second, third, *_ = by_hand.split("\n─ ")[1:]
    assert "✗ invalid argument" in first and "so that 0 <= y <" in first and "expected" not in first
    assert "✗ unparsable call" in second
    assert "ANSWER" in third and ("✓ right" in third or "✗ wrong" in third)
    assert answer.stdout.count("task 1 of") == 1 and answer.stdout.count("task 2 of") == 1

    with RunReader(tmp_path / "runs" / "mine") as reader:
        records = [reader.bodies.trajectory(n) for n in (1, 2)]
        tokens = reader.bodies.tokens(1)
    whole, left = records
    assert (
        whole.trajectory.agent == "by hand"
        and whole.trajectory.extra["by_hand"]
        and whole.breakdown is not None
        and tokens is not None
    )
    assert [p.rule for p in whole.breakdown.penalties] == ["invalid_argument", "unparsable_call"]
    summed = [line for line in answer.stdout.splitlines() if line.startswith("Σ steps")]
    assert float(summed[1].split()[-1].replace("−", "-")) == pytest.approx(whole.breakdown.total, abs=0.005)
    assert left.trajectory.error == "left by the person who played"

    exported = subprocess.run(
        [sys.executable, "-m", "grpo_tui.tui.cli", "export", "mine", "--format", "messages", "--filter", "stop:answer"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert exported.returncode == 0, exported.stderr
    config = load_config(tmp_path / "runs" / "mine" / "config.yaml")
    (demonstration,) = read_conversations(tmp_path / "mine.messages.jsonl", load_tokenizer(config.model))
    assert demonstration.tokens.token_ids.tolist() == list(tokens.token_ids)
    assert demonstration.tokens.agent_mask.tolist() == list(tokens.agent_mask)


def test_a_dataset_with_a_reward_function(tmp_path: Path):
    """The whole turn is the answer; the reward function's print reaches the log and not the screen."""
    (tmp_path / "sums.jsonl").write_text('{"prompt": "2+3?", "answer": "5"}\n{"prompt": "7+1?", "answer": "8"}\n')
    (tmp_path / "own.py").write_text(
        "def right(completions, answer, **columns):\n"
        "    print('printed by the reward function')\n"
        "    return [float(a in c) for c, a in zip(completions, answer)]\n"
    )
    answer = played(
        tmp_path, "it is 5\n/next\n9\n", "--dataset", "sums.jsonl", "--reward", "own.py:right", "--run-id", "sums"
    )
    assert answer.returncode == 0, answer.stderr
    assert "reward 1.00" in answer.stdout and "reward 0.00" in answer.stdout
    assert "ANSWER" not in answer.stdout and "printed by" not in answer.stdout
    assert "printed by the reward function" in (tmp_path / "runs" / "sums" / "logs" / "play.log").read_text()


DICE = """
import random

from grpo_tui.envs import MultiTurnEnv, StepResult


class Dice(MultiTurnEnv):
    name = "dice"

    def __init__(self, tokenizer=None, **config):
        super().__init__(tokenizer, max_turns=3, **config)

    def make_tasks(self, split, n, seed):
        return [{}] * n

    def reset(self, task):
        return {}, [{"role": "user", "content": "roll"}]

    def step(self, state, call):
        return StepResult(f"rolled {random.SystemRandom().random()}", 0.0)

    def explain(self):
        return ""
"""


def test_the_continuation_repeats_the_persons_turns_in_a_copy(tmp_path: Path):
    """After a turn of the person, the model continues from the state that this turn led to."""
    turn = "SEGMENT_OBJECT_AT(x=1, y=9999)"
    answer = played(tmp_path, "\n".join([turn, "/model", "/quit"]), FEW, "--run-id", "mine")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    before, continued = answer.stdout.split("the model's continuation")
    assert turn in before and turn not in continued
    assert continued.split("\n─ ")[1].startswith("2 ─"), "from the second turn on"
    with RunReader(tmp_path / "runs" / "mine") as reader:
        assert reader.rollouts.total() == 1, "the continuation is not recorded"
        assert len(reader.bodies.trajectory(1).trajectory.steps) == 1


def test_of_an_environment_that_does_not_repeat_itself_one_turn_is_shown(tmp_path: Path):
    (tmp_path / "dice.py").write_text(DICE)
    settings = [f"--set=environment.class_path={tmp_path}/dice.py:Dice", "--set=training.max_trajectory_tokens=400"]
    answer = played(tmp_path, "six\n/model\nfive\n/quit\n", *settings, "--run-id", "dice")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "The environment is not deterministic" in answer.stdout
    continued = answer.stdout.split("the model's continuation")[1]
    assert continued.startswith("\n─ 2 ─") and "rolled" not in continued


def test_tools_of_the_users_own(tmp_path: Path):
    shutil.copytree(EXAMPLES / "tool_function", tmp_path, dirs_exist_ok=True)
    shown = played(tmp_path, "", "config.yaml")
    assert shown.returncode == 0, shown.stderr
    assert "tools    " in shown.stdout and "(" in shown.stdout.split("tools    ")[1].splitlines()[0]


def test_a_model_that_is_not_there(cli: Cli, tmp_path: Path):
    answer = cli("play", "--model", str(tmp_path / "nothing"), "--run-id", "none")
    assert answer.returncode == 2
    assert "nothing" in answer.stderr and "Traceback" not in answer.stdout + answer.stderr


def test_the_terminal(tmp_path: Path):
    """A tool is chosen by its number; the reason of a penalty and the turn of the model are shown. Not forked."""
    command = [sys.executable, "-m", "grpo_tui.tui.cli", "play", FEW, "--run-id", "mine"]
    with Terminal(command, cwd=tmp_path) as screen:
        screen.see("task 1 of", "1 SEGMENT_OBJECT_AT")
        screen.press("1")
        screen.see("Your turn", "SEGMENT_OBJECT_AT(x=, y=)")
        screen.press("\x15")
        screen.settle()
        screen.press("SEGMENT_OBJECT_AT(x=1, y=9999)\r")
        screen.see("✗ invalid argument", "limit: 0 <= y <", "reward so far")
        screen.press("\x12")
        screen.see("the model's continuation · reward", "SEGMENT_OBJECT_AT")
        screen.press("q")
        assert screen.wait() == 0
    with RunReader(tmp_path / "runs" / "mine") as reader:
        assert reader.bodies.trajectory(1).trajectory.agent == "by hand"
