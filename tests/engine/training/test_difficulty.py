"""Prompts drawn by difficulty: the arithmetic against other computations, and real trainings."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta as beta_distribution

from grpo_tui.configs.errors import ConfigError
from grpo_tui.configs.loading import load_config
from grpo_tui.engine.rollouts.dataset import load_rows
from grpo_tui.engine.rollouts.difficulty import Difficulty, PassRatesError
from grpo_tui.engine.runs.health.checkpoints import checkpoint_folder
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.training.__main__ import run
from grpo_tui.engine.training.pass_rates import _asked, outcomes_of_dump, question, recorded_outcomes
from grpo_tui.envs.seeds import task_id

from .runs import events, make_run
from .test_resume import assert_same_run

STEPS = 4
SOMETIMES = f"{Path(__file__).with_name('paying_env.py')}:SometimesEnv"


@settings(max_examples=15)
@given(st.lists(st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=8), max_size=4))
def test_weights_are_the_expected_variance_under_the_posterior(steps):
    found = Difficulty(list("abcab"))
    for outcomes in steps:
        found.learn(outcomes)
    expected = []
    for prompt in "abcab":
        passes = fails = 0.0
        for outcomes in steps:
            own = [right for name, right in outcomes if name == prompt]
            if own:
                passes, fails = passes / 2 + sum(own), fails / 2 + len(own) - sum(own)
        posterior = beta_distribution(1 + passes, 1 + fails)
        expected.append(posterior.expect(lambda p: p * (1 - p)))
    assert found.weights == pytest.approx(np.array(expected) / sum(expected), rel=1e-6)


def test_rows_are_drawn_as_often_as_their_weights():
    difficulty = Difficulty(list("abc"))
    difficulty.learn([("a", True)] * 8 + [("b", False)] * 4 + [("b", True)] * 4)
    drawn = np.bincount([difficulty.draw(1, step)[0] for step in range(4000)], minlength=3) / 4000
    assert drawn == pytest.approx(difficulty.weights, abs=4 * 0.5 / 4000**0.5)
    assert difficulty.weights.argmax() == 1 and difficulty.weights.argmin() == 0


def test_rows_of_a_step_differ_where_there_are_enough():
    difficulty = Difficulty([str(i) for i in range(6)])
    assert sorted(difficulty.draw(6, 1)) == list(range(6))
    assert len(difficulty.draw(9, 2)) == 9


def make(folder: Path, base: Path, pass_rates: Path | None = None, **training: object) -> Path:
    """A run whose few tasks are solved sometimes."""
    make_run(folder, base, max_steps=STEPS, prompts_per_step=3, eval_tasks=0, **training)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["data"] = {"sampler": "difficulty", "pass_rates": None if pass_rates is None else str(pass_rates)}
    config["environment"] |= {"train_tasks": 10, "class_path": SOMETIMES}
    config["environment"]["config"] = {"prompt_style": "terse"}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # of the indexes of dumps


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("model") / "base"


@pytest.fixture(scope="module")
def whole(tmp_path_factory, base) -> Path:
    folder = make(tmp_path_factory.mktemp("runs") / "whole", base)
    assert run(folder) == 0
    return folder


def prompts_by_step(folder: Path) -> list[list[str]]:
    """The prompts of each step, in the order of the batch."""
    with RunReader(folder) as reader:
        rows = [r for r in reader.rollouts.page(limit=1000) if r.split == "train"]
    return [list(dict.fromkeys(r.prompt_id for r in rows if r.step == step)) for step in range(1, STEPS + 1)]


def test_the_draws_of_a_training_follow_from_its_record(whole):
    """Whoever follows the recorded outcomes draws the recorded prompts."""
    outcomes = recorded_outcomes(whole)
    assert len({right for step in outcomes for _, right in step}) == 2, "some rollouts are right, some are wrong"
    ids = ids_of(whole)
    followed = Difficulty(ids, seed=3)
    for step, (prompts, found) in enumerate(zip(prompts_by_step(whole), outcomes, strict=True)):
        assert [ids[row] for row in followed.draw(3, step)] == prompts
        followed.learn(found)
    assert followed.weights.max() > 1.2 * followed.weights.min()
    with RunReader(whole) as reader:
        known = [value for _, value in reader.metrics.points("data/known")]
    assert known[0] == 0.0 and known == sorted(known) and known[-1] > 0.4


def ids_of(folder: Path) -> list[str]:
    config = load_config(folder / "config.yaml")
    return [task_id("sometimes", row.task_data) for row in load_rows(config.environment, "train", config.seed)]


def test_a_resumed_run_draws_as_one_that_was_not_stopped(tmp_path, whole):
    folder = tmp_path / "copied"
    shutil.copytree(whole, folder)
    text = (folder / "config.yaml").read_text().replace(str(whole / "adapters"), str(folder / "adapters"))
    (folder / "config.yaml").write_text(text)
    shutil.rmtree(checkpoint_folder(folder) / f"checkpoint-{STEPS}")
    assert run(folder, resume=True) == 0
    assert prompts_by_step(folder) == prompts_by_step(whole)
    assert_same_run(folder, whole)


def test_pass_rates_begin_with_those_of_a_run(tmp_path, base, whole):
    folder = make(tmp_path / "next", base, pass_rates=whole)
    assert run(folder) == 0
    begun = Difficulty(ids_of(whole), seed=3)
    begun.begin("", recorded_outcomes(whole))
    assert [begun.draw(3, 0)[i] for i in range(3)] == [ids_of(whole).index(p) for p in prompts_by_step(folder)[0]]
    with RunReader(folder) as reader:
        (_, known), *_ = reader.metrics.points("data/known")
    assert known > 0.4
    assert any("pass rates of" in message for message in events(folder, "phase"))


def test_a_run_of_other_prompts_is_refused(tmp_path, base, whole, capsys):
    other = make_run(tmp_path / "other", base, max_steps=1, eval_tasks=0)
    assert run(other) == 0
    assert run(make(tmp_path / "next", base, pass_rates=other)) == 1
    assert "has rollouts of other prompts only" in capsys.readouterr().err


def as_verl_writes(folder: Path, dump: Path, template: str) -> None:
    """Write the rollouts of a run as verl does: prompts in a chat template, scores, a file for each step."""
    dump.mkdir()
    with RunReader(folder) as reader:
        for row in sorted(reader.rollouts.page(limit=1000), key=lambda r: r.step or 0):
            if row.split == "train":
                prompt = template.format(reader.bodies.trajectory(row.n).trajectory.prompt)
                line = {"input": prompt, "output": row.answer, "score": float(row.correct is True), "step": row.step}
                with (dump / f"{row.step}.jsonl").open("a") as file:
                    file.write(json.dumps(line) + "\n")


TEMPLATES = (
    "system\nYou are helpful.\nuser\n{}\nassistant\n",
    "<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n",
    "<s>[INST]   {}  [/INST]",
)


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_dump_of_another_framework_has_the_outcomes_of_its_run(tmp_path, base, whole, template):
    as_verl_writes(whole, tmp_path / "dump", template)
    with RunReader(whole) as reader:
        prompts = {
            r.prompt_id: question([{"role": "user", "content": r.prompt}]) for r in reader.rollouts.page(limit=99)
        }
    others = {"other": "1", "first line": "the last line is another", "empty": ""}
    found = outcomes_of_dump(tmp_path / "dump", {**others, **prompts})
    assert [sorted(step) for step in found] == [sorted(step) for step in recorded_outcomes(whole)]
    with pytest.raises(PassRatesError, match="has no outcomes of these prompts"):
        outcomes_of_dump(tmp_path / "dump", others)


def test_pass_rates_begin_with_those_of_a_dump(tmp_path, base, whole, capsys):
    as_verl_writes(whole, tmp_path / "dump", TEMPLATES[1])
    folder = make(tmp_path / "next", base, pass_rates=tmp_path / "dump")
    assert run(folder) == 0
    begun = Difficulty(ids_of(whole), seed=3)
    begun.begin("", recorded_outcomes(whole))
    assert [begun.draw(3, 0)[i] for i in range(3)] == [ids_of(whole).index(p) for p in prompts_by_step(folder)[0]]
    assert run(make(tmp_path / "lost", base, pass_rates=tmp_path / "nowhere")) == 1
    assert "data.pass_rates" in capsys.readouterr().err


def test_the_longest_question_that_a_prompt_contains_is_meant():
    lines = {"short": "What is 2 + 2?", "long": "Look.\nWhat is 2 + 2?", "part": "2 + 2?"}
    by_last_line = {"What is 2 + 2?": [(lines[k], k) for k in ("short", "long")], "2 + 2?": [(lines["part"], "part")]}
    assert _asked("user\nLook.\n\n What is  2 + 2?\nassistant", by_last_line) == "long"
    assert _asked("user: Look. What is 2 + 2?", by_last_line) is None
    assert _asked("<|user|>What is 2 + 2?<|end|>", by_last_line) == "short"
    assert question([{"role": "system", "content": "x"}, {"role": "user", "content": " a\t b \n\n c"}]) == "a b\nc"
    assert question([]) == ""


def test_pass_rates_need_the_sampler():
    with pytest.raises(ConfigError, match=r"data\.sampler: uniform does not use it"):
        load_config(None, ["data.pass_rates=my-run"])
