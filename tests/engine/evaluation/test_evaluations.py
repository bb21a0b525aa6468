"""Evaluations of a small random policy, through the command and through the process behind it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from grpo_tui.configs.loading import load_config
from grpo_tui.configs.schema import RunConfig
from grpo_tui.configs.sections import EvaluationConfig
from grpo_tui.configs.writing import to_yaml
from grpo_tui.engine.evaluation.results import TASK, Evaluation, Task, compare, finished_tasks, read_evaluation
from grpo_tui.engine.runs.control.requests import RunRequest
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.types import TrajectoryRecord
from grpo_tui.engine.runs.write.writer import RunWriter
from grpo_tui.engine.training import evaluate
from grpo_tui.envs.trajectory import Trajectory
from tests.e2e.world import grpo_tui, save_model, write_world


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, an environment, rows, and a trained run `mine` of two steps."""
    folder = tmp_path_factory.mktemp("world")
    config = write_world(folder, save_model(folder / "model"), max_steps=2, save_every=1, keep_checkpoints=3)
    rows = "{source: rows.jsonl"
    text = (
        config.read_text().replace(rows, f"{rows}, eval_source: rows.jsonl").replace("eval_tasks: 0", "eval_tasks: 10")
    )
    config.write_text(text)
    done = grpo_tui(folder, "train", config.name, "--run-id", "mine", "--headless")
    assert done.returncode == 0, done.stderr
    return folder


def evaluated(world: Path, *arguments: str) -> dict:
    done = grpo_tui(world, "eval", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_checkpoints_are_compared_task_by_task(world: Path) -> None:
    answer = evaluated(world, "mine@base", "mine@1", "mine", "--samples", "3")
    base, first, last = answer["evaluations"]
    assert [e["step"] for e in answer["evaluations"]] == [0, 1, 2]
    assert base["tasks"] == 10 and base["samples"] == 3 and base["temperature"] == 1.0
    for e in (base, first, last):
        assert 0 <= e["success"]["low"] <= e["success"]["estimate"] <= e["success"]["high"] <= 1
        assert e["pass^3"]["estimate"] <= e["success"]["estimate"] <= e["pass@3"]["estimate"]
        assert {"turns", "tokens"} <= e["cost"].keys() and e["cost"]["tokens"]["estimate"] > 0
    change = answer["differences"][1]
    measured = last["success"]["estimate"] - base["success"]["estimate"]
    assert change["success"]["interval"]["estimate"] == pytest.approx(measured)
    gained, lost = ({t["task"] for t in change[key]} for key in ("gained", "lost"))
    assert not gained & lost
    listed = grpo_tui(world, "inspect", Path(last["run"]).name, "--filter", f"extra.{TASK}=4", "--json").stdout
    row = json.loads(listed.splitlines()[0])
    assert row["split"] == "eval" and row["step"] == 2


def test_every_row_of_a_dataset_is_evaluated(world: Path) -> None:
    rows = [{"prompt": f"{i} + 1 =", "answer": str(i + 1)} for i in range(7)]
    (world / "other.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    few = ("--dataset", "other.jsonl", "--set", "training.max_turn_tokens=4")
    for limit, tasks in ((), len(rows)), (("--tasks", "3"), 3):
        answer = evaluated(world, str(world / "model"), *few, *limit)
        assert answer["evaluations"][0]["tasks"] == tasks


def test_an_evaluation_that_exists_is_read_and_not_repeated(world: Path) -> None:
    before = evaluated(world, "mine")
    path = Path(before["evaluations"][0]["run"])
    changed = (path / "record.sqlite").stat().st_mtime_ns
    assert evaluated(world, "mine") == before
    assert evaluated(world, path.name)["evaluations"][0]["success"] == before["evaluations"][0]["success"]
    assert (path / "record.sqlite").stat().st_mtime_ns == changed


def test_the_same_policy_twice_does_not_differ(world: Path) -> None:
    change = evaluated(world, "mine", str(world / "saved_models" / "rft_adapters"))["differences"][0]
    assert change["success"]["p"] == 1.0 and not change["gained"] and not change["lost"]
    assert change["reward"]["interval"]["estimate"] == 0.0


def test_gates_end_with_exit_code_1(world: Path) -> None:
    assert grpo_tui(world, "eval", "mine", "--fail-under", "0").returncode == 0
    failed = grpo_tui(world, "eval", "mine", "--fail-under", "1.01")
    assert failed.returncode == 1 and "below" in failed.stderr
    assert grpo_tui(world, "eval", "mine", "mine@base", "--regression", "100").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (("nothing-of-this-name",), 3, "no run"),
        (("mine@77",), 2, "it has 0, 1, 2"),
        (("model",), 2, "no tasks:"),
        (("mine", "--dataset", "none.jsonl"), 2, "none.jsonl"),
    ],
)
def test_a_wrong_subject_is_one_sentence(world: Path, arguments: tuple[str, ...], code: int, why: str) -> None:
    (world / "model2").mkdir(exist_ok=True)
    given = tuple(str(world / "model") if a == "model" else a for a in arguments)
    done = grpo_tui(world, "eval", *given)
    assert done.returncode == code and why in done.stderr and done.stderr.count("\n") == 1, done.stderr


@dataclass
class StopsAfter:
    """A channel on which `stop` arrives after some polls."""

    polls: int
    answers: list[str] = field(default_factory=list)

    def poll(self) -> list[RunRequest]:
        self.polls -= 1
        return [RunRequest("1", "stop", 0.0)] if self.polls < 0 else []

    def acknowledge(self, request: RunRequest, outcome: str) -> None:
        self.answers.append(outcome)


def test_an_evaluation_that_was_stopped_continues_with_the_same_numbers(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(world)
    monkeypatch.setattr(evaluate, "PORTION_ROLLOUTS", 6)
    config = load_config("letters.yaml").model_copy(
        update={"mode": "eval", "evaluation": EvaluationConfig(subject="model", samples=2, temperature=1.0)}
    )

    def run(folder: Path, polls: int) -> bool:
        folder.mkdir(exist_ok=True)
        (folder / "config.yaml").write_text(to_yaml(config))
        writer = RunWriter(folder)
        try:
            return evaluate.run_eval(config, folder, writer, StopsAfter(polls))  # type: ignore[arg-type]
        finally:
            writer.close()

    assert run(tmp_path / "whole", 99)
    assert not run(tmp_path / "stopped", 2)
    with RunReader(tmp_path / "stopped") as reader:
        assert 0 < reader.rollouts.total() < 20
    assert run(tmp_path / "stopped", 99)
    whole, stopped = (read_evaluation(tmp_path / name) for name in ("whole", "stopped"))
    assert len(whole.tasks) == 10 and whole.success == stopped.success and whole.reward == stopped.reward
    assert compare(whole, stopped).reward.p == 1.0
    for a, b in zip(whole.tasks.values(), stopped.tasks.values(), strict=True):
        assert (a.prompt_id, a.right, a.rewards) == (b.prompt_id, b.right, b.rewards)


def test_tasks_keep_their_numbers_if_long_prompts_are_dropped(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokenizer of another policy drops other rows."""
    monkeypatch.chdir(world)
    rows = [{"question": text, "answer": "1"} for text in ("Add.", "long " * 100, "Count.")]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = {"source": str(tmp_path / "rows.jsonl"), "eval_source": str(tmp_path / "rows.jsonl"), "answer": "answer"}
    config = RunConfig.model_validate(
        {
            "mode": "eval",
            "model": {"base": "model", "sft_adapters": None, "device": "cpu"},
            "data": {**data, "long_prompts": "drop"},
            "training": {"max_trajectory_tokens": 64, "max_turn_tokens": 4},
            "evaluation": {"subject": "model", "samples": 1},
        }
    )
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    writer = RunWriter(tmp_path)
    assert evaluate.run_eval(config, tmp_path, writer)
    writer.close()
    assert {n: task.prompt for n, task in read_evaluation(tmp_path).tasks.items()} == {0: "Add.", 2: "Count."}


def evaluation(*tasks: Task) -> Evaluation:
    return Evaluation(Path("run"), EvaluationConfig(), dict(enumerate(tasks)))


def test_a_task_that_its_environment_failed_has_no_components_to_compare() -> None:
    right = [Task(str(n), "?", [n], [True], [1.0], {"task": [1.0]}) for n in range(2)]
    failed = Task("1", "?", [1], [False], [0.0])
    found = compare(evaluation(*right), evaluation(right[0], failed))
    assert found.components["task"].interval.n == 1 and found.reward.interval.n == 2
    assert not compare(evaluation(right[1]), evaluation(failed)).components


def test_a_task_that_was_recorded_in_part_and_repeated_counts_each_sample_once(tmp_path: Path) -> None:
    config = RunConfig(mode="eval", evaluation=EvaluationConfig(subject="model", samples=3))
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    writer = RunWriter(tmp_path)

    def record(*samples: int) -> None:
        made = [Trajectory(f"{n}", "e", "p", "g", n, "Q?", (), correct=n == 2, extra={TASK: 0}) for n in samples]
        writer.trajectories(0, list(map(TrajectoryRecord, made)))
        assert writer.flush(30)

    try:
        for killed in range(2):
            record(0, 1)
            assert finished_tasks(tmp_path, 3) == set(), killed
        record(0, 1, 2)
    finally:
        writer.close()
    assert finished_tasks(tmp_path, 3) == {0}
    assert read_evaluation(tmp_path).tasks[0].right == [False, False, True]


def test_portions_are_consecutive_tasks() -> None:
    found = [list(p) for p in evaluate.portions([0, 1, 2, 5, 6, 9], 32)]
    assert found == [[0, 1], [2], [5, 6], [9]]
