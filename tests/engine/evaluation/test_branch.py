"""Branches of recorded rollouts: the replay, the policy, and values against known truth."""

from __future__ import annotations

import json
import random
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_tui.engine.agents.transformers_agent import TransformersAgent
from grpo_tui.engine.evaluation.branch import branch_config, read_branch, side_of
from grpo_tui.engine.evaluation.statistics import bounded_interval, difference_interval
from grpo_tui.engine.record.step_recorder import StepRecorder
from grpo_tui.engine.rollouts.runner import RolloutRunner, Row
from grpo_tui.engine.rollouts.scoring import Scorer
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.types import Step, Trajectory
from grpo_tui.engine.runs.write.writer import RunWriter
from grpo_tui.engine.training import branch
from grpo_tui.engine.training.branch import Continuations, first_difference, run_branch
from grpo_tui.envs.base import StepResult
from grpo_tui.envs.multi_turn import MultiTurnEnv
from tests.e2e.terminal import Terminal
from tests.e2e.world import grpo_tui, save_model, variables, write_world

from .test_evaluations import StopsAfter

RANDOM = '''
import random
from grpo_tui.envs.base import StepResult
from grpo_tui.envs.multi_turn import MultiTurnEnv


class Dice(MultiTurnEnv):
    """The first answer rolls a die of `sides`, the second one ends."""

    name = "dice"

    def __init__(self, tokenizer=None, *, sides=6, **config):
        super().__init__(tokenizer, max_turns=3, **config)
        self.sides = sides

    def make_tasks(self, split, n, seed):
        return [{"task": i} for i in range(n)]

    def reset(self, task):
        return {"turn": 0}, [{"role": "user", "content": "roll"}]

    def step(self, state, call):
        state["turn"] += 1
        if state["turn"] < 2:
            return StepResult(f"rolled {random.SystemRandom().randrange(self.sides)}")
        return StepResult("", reward=float("e" in call.text), done=True, correct="e" in call.text)

    def explain(self):
        return ""
'''


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and the runs `mine` and `dice`; `mine` keeps the checkpoints of steps 1 and 2."""
    folder = tmp_path_factory.mktemp("world")
    config = write_world(folder, save_model(folder / "model"), max_steps=2, save_every=1, keep_checkpoints=3)
    done = grpo_tui(folder, "train", config.name, "--run-id", "mine", "--headless")
    assert done.returncode == 0, done.stderr
    (folder / "dice.py").write_text(RANDOM)
    dice = config.read_text().replace("data: {source: rows.jsonl}\n", "")
    dice = dice.replace("letters.py:LettersEnv\n", "dice.py:Dice\n  config: {sides: 1000000}\n  train_tasks: 4\n")
    (folder / "dice.yaml").write_text(dice.replace("max_steps: 2", "max_steps: 1"))
    done = grpo_tui(folder, "train", "dice.yaml", "--run-id", "dice", "--headless")
    assert done.returncode == 0, done.stderr
    return folder


def branched(world: Path, *arguments: str) -> dict[str, Any]:
    done = grpo_tui(world, "branch", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def agent_tokens(reader: RunReader, n: int, turn: int | None = None) -> list[int]:
    tokens = reader.bodies.tokens(n)
    assert tokens is not None
    chosen = np.asarray(tokens.agent_mask) & (turn is None or np.asarray(tokens.turn) == turn)
    return np.asarray(tokens.token_ids)[chosen].tolist()


def all_tokens(reader: RunReader, n: int) -> list[int]:
    tokens = reader.bodies.tokens(n)
    assert tokens is not None
    return list(tokens.token_ids)


def test_a_replay_equals_the_record_token_by_token(world: Path) -> None:
    answer = branched(world, "mine", "--at", "21:2", "-n", "6")
    assert answer["replay"] is None and (answer["policy"], answer["policy_step"]) == ("mine@1", 1)
    assert answer["rollout_policy_step"] == 1, "the rollouts of step 2 come from the policy of step 1"
    with RunReader(world / "runs" / "mine") as source, RunReader(answer["run"]) as made:
        recorded, original = all_tokens(source, 21), source.bodies.trajectory(21)
        kept = len(recorded) - len(agent_tokens(source, 21, 1))
        before, after = ([all_tokens(made, r["n"]) for r in answer[side]["rollouts"]] for side in ("before", "after"))
        assert len(before) == len(after) == 6
        assert all(tokens[:kept] == recorded[:kept] for tokens in before)
        assert len({tuple(tokens[kept:]) for tokens in before}) > 1, "the policy writes the step again"
        assert all(tokens == recorded for tokens in after), "the step ended the rollout"
        ends = [made.bodies.trajectory(r["n"]).trajectory for r in answer["after"]["rollouts"]]
    assert {t.steps[0].observation for t in ends} == {original.trajectory.steps[0].observation}
    assert {(t.env_reward, t.correct) for t in ends} == {(original.trajectory.env_reward, original.trajectory.correct)}
    assert answer["after"]["reward"]["low"] == answer["after"]["reward"]["high"], "nothing was sampled"
    assert answer["advantage"] == pytest.approx(original.step_advantages[1])


def test_a_branch_at_the_first_step_continues_after_it(world: Path) -> None:
    answer = branched(world, "mine", "--at", "5/1", "-n", "5", "--policy", "mine@base")
    assert (answer["policy"], answer["policy_step"]) == ("mine@base", 0)
    with RunReader(world / "runs" / "mine") as source, RunReader(answer["run"]) as made:
        first = agent_tokens(source, 5, 0)
        assert all(agent_tokens(made, r["n"], 0) == first for r in answer["after"]["rollouts"])
        assert len({tuple(agent_tokens(made, r["n"], 0)) for r in answer["before"]["rollouts"]}) > 1
        rows = [made.rollouts.rows([r["n"]])[0] for side in ("before", "after") for r in answer[side]["rollouts"]]
    assert {r.group for r in rows} == {"before", "after"} and {r.split for r in rows} == {"eval"}


def test_a_branch_within_a_step_keeps_its_first_tokens(world: Path) -> None:
    answer = branched(world, "mine", "--at", "5:1:3", "-n", "5")
    with RunReader(world / "runs" / "mine") as source, RunReader(answer["run"]) as made:
        first = agent_tokens(source, 5, 0)
        turns = [agent_tokens(made, r["n"], 0) for r in answer["before"]["rollouts"]]
        text = made.bodies.trajectory(answer["before"]["rollouts"][0]["n"]).trajectory.steps[0].text
    tokenizer = AutoTokenizer.from_pretrained(world / "model")
    assert tokenizer.decode(turns[0], skip_special_tokens=True) == text
    assert all(turn[:3] == first[:3] and len(turn) <= 8 for turn in turns)
    assert len({tuple(turn) for turn in turns}) > 1


def test_an_environment_that_does_not_repeat_itself_is_reported(world: Path) -> None:
    answer = branched(world, "dice", "--at", "3:2", "-n", "4")
    with RunReader(world / "runs" / "dice") as source, RunReader(answer["run"]) as made:
        recorded = source.bodies.trajectory(3).trajectory.steps[0].observation
        now = {made.bodies.trajectory(r["n"]).trajectory.steps[0].observation for r in answer["before"]["rollouts"]}
    assert answer["replay"]["turn"] == 1 and answer["replay"]["recorded"] == recorded != answer["replay"]["now"]
    assert answer["replay"]["now"] in now and answer["before"]["differing"] == answer["after"]["differing"] == 4
    shown = grpo_tui(world, "branch", "dice", "--at", "3:2", "-n", "4").stdout
    assert "8 of 8 replays differ" in shown and recorded in shown and "observation of turn 1" in shown


def test_only_replays_that_equal_the_record_count(world: Path) -> None:
    """Replays that see the recorded observation are samples given that observation."""
    answer = branched(world, "dice", "--at", "3:2", "-n", "4", "--policy", "dice@base")
    with RunReader(answer["run"]) as made:
        rows = made.rollouts.page(limit=100)
    same = [r for r in rows if r.group == "before"][:2]
    marked = [*same, *(r for r in rows if r.group == "before" and r not in same)]
    for row in same:
        del row.extra["differs"]  # type: ignore[attr-defined]
    side = side_of(marked, 2, 0.0, 1.0)
    assert side.differing == 2 and side.reward.n == 2


def test_a_stopped_branch_continues_with_the_same_numbers(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(world)
    config = branch_config(world / "runs" / "mine", 5, 1, samples=4)

    def run(folder: Path, polls: int) -> bool:
        folder.mkdir(exist_ok=True)
        writer = RunWriter(folder)
        try:
            return run_branch(config, folder, writer, StopsAfter(polls))  # type: ignore[arg-type]
        finally:
            writer.close()

    assert run(tmp_path / "whole", 9999)
    assert not run(tmp_path / "stopped", 14)
    with RunReader(tmp_path / "stopped") as reader:
        assert 0 < reader.rollouts.total() < 8
    assert run(tmp_path / "stopped", 9999)
    with RunReader(tmp_path / "whole") as one, RunReader(tmp_path / "stopped") as other:
        whole, stopped = (read_branch(reader, config.evaluation) for reader in (one, other))
    assert (whole.before.reward, whole.after.reward) == (stopped.before.reward, stopped.after.reward)
    assert len(stopped.before.rows) == len(stopped.after.rows) == 4


@pytest.mark.parametrize(
    ("kind", "n"),
    [
        *((kind, n) for kind in ("binary", "difference") for n in (8, 16)),
        *((kind, 8) for kind in ("three levels", "penalised", "graded")),
        *(pytest.param(kind, 16, marks=pytest.mark.stress) for kind in ("three levels", "penalised", "graded")),
    ],
)
def test_intervals_contain_the_truth_in_93_to_97_percent(n: int, kind: str) -> None:
    """Truths cover the whole range, as those of steps do: certain outcomes and even ones."""
    rng = random.Random(f"{kind} {n}")
    trials, hit = 1000, 0  # so that the share is known to 0.7 points (one standard error)
    for _ in range(trials):
        low, p, q = 0.0, rng.random(), rng.random()
        if kind == "graded":
            a, b = rng.uniform(0.3, 4), rng.uniform(0.3, 4)
            values, truth = [rng.betavariate(a, b) for _ in range(n)], a / (a + b)
        elif kind == "three levels":
            chances = [rng.expovariate(1) for _ in range(3)]
            values = rng.choices([0.0, 0.3, 1.0], chances, k=n)
            truth = (chances[1] * 0.3 + chances[2]) / sum(chances)
        elif kind == "penalised":
            low, truth = -0.05, p - 0.05 * q
            values = [float(rng.random() < p) - 0.05 * (rng.random() < q) for _ in range(n)]
        else:
            values, truth = [float(rng.random() < p) for _ in range(n)], p
        found = bounded_interval(values, low, 1.0)
        if kind == "difference":
            other = bounded_interval([float(rng.random() < q) for _ in range(n)], 0.0, 1.0)
            found, truth = difference_interval(found, other), q - p
        hit += found.low <= truth <= found.high
    assert 0.93 <= hit / trials <= 0.97, hit / trials


def test_the_scale_of_rewards_does_not_matter() -> None:
    plain, scaled = bounded_interval([0, 1, 1, 0.5], 0, 1), bounded_interval([-3, 7, 7, 2], -3, 7)
    numbers = [10 * x - 3 for x in (plain.estimate, plain.low, plain.high)]
    assert [scaled.estimate, scaled.low, scaled.high] == pytest.approx(numbers)
    assert bounded_interval([0.5, 1, 0, 1], 0, 1) == plain, "nor does the order of the samples"
    alike = bounded_interval([0.0] * 8, 0.0, 1.0)
    assert alike.low == 0 and 0.15 < alike.high < 0.4, "eight failures are no proof of a value of 0"


class OneToken(MultiTurnEnv):
    """The second turn is one token, whose text is the reward: `rewards` levels from 0 to 1."""

    name = "one-token"

    def reset(self, task: Mapping[str, Any]) -> tuple[dict[str, Any], list[Any]]:
        return {"turn": 0, **task}, [{"role": "user", "content": f"task {task['task']}"}]

    def step(self, state: dict[str, Any], call: Any) -> StepResult:
        state["turn"] += 1
        if state["turn"] < 2:
            return StepResult("go on")
        return StepResult("", reward=worth(call.text, state), done=True)


def worth(text: str, task: Mapping[str, Any]) -> float:
    share = zlib.crc32(f"{task['task']} {text}".encode()) / 2**32
    if task["levels"] == 2:
        return float(share < task["limit"])
    return round(share ** (1 / task["limit"] - 0.9) * 10) / 10


@pytest.mark.stress
def test_93_to_97_percent_of_the_values_of_branches_contain_the_truth(world: Path, tmp_path: Path) -> None:
    """200 branches each with 8 and 16 samples, of rewards 0 and 1 and of graded ones."""
    shapes = [(8, 2), (16, 2), (8, 11), (16, 11)]
    hits = [hit for shape in shapes for hit in _hits(world, tmp_path / "{}-{}".format(*shape), *shape)]
    assert len(hits) == 800 and 0.93 <= np.mean(hits) <= 0.97, np.mean(hits)


def _hits(world: Path, folder: Path, samples: int, levels: int) -> list[bool]:
    """The truth is exact: the reward of each token times its probability from one plain pass of the model."""
    model = AutoModelForCausalLM.from_pretrained(world / "model").eval()
    tokenizer = AutoTokenizer.from_pretrained(world / "model")
    agent = TransformersAgent(model, tokenizer, max_turn_tokens=1)
    runner = RolloutRunner(agent, tokenizer, samples)
    rng = random.Random(samples * levels)
    tasks = [{"task": i, "levels": levels, "limit": rng.uniform(0.03, 0.97)} for i in range(200)]
    rows = [Row("tests.engine.evaluation.test_branch.OneToken", {"max_turns": 2}, task) for task in tasks]
    writer = RunWriter(folder)
    truths = {}
    for number, row in enumerate(rows):
        recorded = runner.run([row], first=number, seed=1, num_rollouts=1)[0]
        assert recorded.trajectory is not None
        turns = branch.turns_of(recorded.trajectory, recorded.token_arrays(), agent.chat)
        made = Continuations(
            StepRecorder(writer), runner, None, Scorer(samples), row, recorded.trajectory, 0, None, set()
        )
        made.sample(f"before {number}", turns[:1], number)
        before = recorded.token_ids[: int(np.flatnonzero(recorded.agent_mask & (recorded.turn_ids == 1))[0])]
        with torch.no_grad():
            chances = model(input_ids=torch.as_tensor(before)[None]).logits[0, -1].double().softmax(-1).tolist()
        texts = [agent.chat.decode([token]) for token in range(len(chances))]
        truths[f"before {number}"] = sum(p * worth(t, row.task_data) for p, t in zip(chances, texts, strict=True))
    writer.close()
    hits = []
    with RunReader(folder) as reader:
        found = reader.rollouts.page(limit=200 * samples)
        assert len(found) == 200 * samples and not any("differs" in r.extra for r in found)
        for side, truth in truths.items():
            value = side_of([r for r in found if r.group == side], 1, 0.0, 1.0).reward
            assert value.n == samples
            hits.append(value.low <= truth <= value.high)
    return hits


def test_a_difference_is_that_of_the_first_turn() -> None:
    old = _trajectory("p", "a", "b", "c")
    assert first_difference(old, _trajectory("p", "a", "b", "x"), 2) is None
    assert first_difference(old, _trajectory("p", "a", "x", "y"), 3) == (2, "b", "x")
    assert first_difference(old, _trajectory("q", "x"), 1) == (0, "p", "q")
    ended = first_difference(old, _trajectory("p", "a"), 2)
    assert ended is not None and ended[:2] == (1, "b") and "ended" in ended[2]
    assert first_difference(old, _trajectory("p", "a", "b", "c", "d"), 3) is not None


def _trajectory(prompt: str, *observations: str) -> Trajectory:
    steps = tuple(Step(i, "", observation=o) for i, o in enumerate(observations))
    return Trajectory("1", "env", "p", "g", 0, prompt, steps)


def test_the_key_in_a_terminal(world: Path) -> None:
    """The continuations and the value appear, and enter opens one of them."""
    command = [sys.executable, "-m", "grpo_tui.tui.cli", "inspect", "mine", "--at", "7/1"]
    with Terminal(command, cwd=world, env=variables(), rows=24, columns=80, forked=True) as screen:
        screen.see("step 1/2")
        screen.press("b")
        screen.see("branch-mine-7-1", within=120)
        text = screen.see("before   16/16", "after    16/16", "│ value ", "1 of 32", within=120)
        assert "step 1 of rollout 7 · policy mine@base" in text and "advantage in training" in text
        screen.press("\r")
        screen.see("step 1/2", "branch-mine-7-1")
        screen.press("q")
        assert screen.wait() == 0
    found = json.loads(grpo_tui(world, "branch", "mine", "--at", "7:1", "--json").stdout)
    assert len(found["before"]["rollouts"]) == 16, "the command finds the branch of the key"
    low, high = (f"{abs(found['worth'][end]):.2f}" for end in ("low", "high"))
    assert low in text and high in text, "and has the same numbers"


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (("none", "--at", "1:1"), 3, "no run"),
        (("mine", "--at", "9999:1"), 3, "numbers 1 to"),
        (("mine", "--at", "5:3"), 2, "has 2 steps, and no step 3"),
        (("mine", "--at", "5"), 2, "such as 812:3"),
        (("mine", "--at", "5:1", "--policy", "mine@9"), 2, "it has 0, 1, 2"),
        (("other", "--at", "1:1"), 2, "comes from another program"),
        (("mine", "--at", "5:1:99"), 1, "no token 99 to branch after"),
        (("gone", "--at", "1:1"), 1, "is not among the"),
    ],
)
def test_what_cannot_be_branched_is_one_sentence(world: Path, arguments: tuple[str, ...], code: int, why: str) -> None:
    from grpo_tui import Recorder

    if arguments[0] == "other" and not (world / "runs" / "other").exists():
        with Recorder("other", runs_dir=world / "runs"):
            pass
    if arguments[0] == "gone" and not (world / "runs" / "gone").exists():
        import shutil

        shutil.copytree(world / "runs" / "dice", world / "runs" / "gone")
        config = world / "runs" / "gone" / "config.yaml"
        config.write_text(config.read_text().replace("dice.py:Dice", "dice2.py:Dice"))
        (world / "dice2.py").write_text(RANDOM.replace('name = "dice"', 'name = "other dice"'))
    done = grpo_tui(world, "branch", *arguments)
    assert done.returncode == code and why in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
