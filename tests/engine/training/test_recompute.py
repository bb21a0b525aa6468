"""Every number of a recorded training comes out again from the record alone, and one that was changed is found."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_tui.configs.schema import RunConfig
from grpo_tui.engine.launch.settings import read_config
from grpo_tui.engine.recompute.check import recompute, recompute_steps
from grpo_tui.engine.recompute.items import RecordedRollout, steps_of
from grpo_tui.engine.runs.paths import DATABASE
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.training.__main__ import run
from grpo_tui.tui.cli.main import run as grpo_tui

from .runs import make_run

STEPS = 4


@dataclass(frozen=True)
class Recorded:
    """A training as it was read."""

    folder: Path
    config: RunConfig
    steps: list[tuple[int, list[RecordedRollout]]]
    metrics: dict[int, dict[str, float]]


@pytest.fixture(scope="module")
def trainings(tmp_path_factory) -> Callable[[str], Recorded]:
    """A training by how shaping is compared, made when it is first asked for."""
    return cache(lambda compared: training(tmp_path_factory.mktemp("recompute"), compared))


@pytest.fixture(params=["group", "peers"])
def recorded(trainings, request) -> Recorded:
    return trainings(request.param)


def training(place: Path, compared: str) -> Recorded:
    """Make it: shaping is compared within the `group`, or with `peers` alone."""
    # a small clip range and large steps, so that ratios are clipped
    folder = make_run(
        place / "runs" / "run",
        place / "base",
        max_steps=STEPS,
        prompts_per_step=3,
        save_every=0,
        eval_tasks=0,
        trl={"epsilon": 0.002},
        learning_rate=0.02,
        micro_batch_size=4,
        compare_shaping=compared,
        replay={"min_group_std": 0.001 if compared == "group" else 0.08},  # groups without signal in both
    )
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["rewards"] |= {"normalization": {"penalty": "group"}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    assert run(folder) == 0
    with RunReader(folder) as reader:
        return Recorded(folder, read_config(folder), list(steps_of(reader)), reader.metrics.by_step())


def two_steps(place: Path, rewards: dict[str, Any] | None = None, **settings: Any) -> Path:
    """The folder of a run of two steps, without evaluations."""
    given = {"max_steps": 2, "prompts_per_step": 3, "save_every": 0, "eval_tasks": 0, **settings}
    folder = make_run(place / "run", place / "base", **given)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    (folder / "config.yaml").write_text(yaml.safe_dump({**config, "rewards": config["rewards"] | (rewards or {})}))
    return folder


def test_nothing_is_wrong_in_a_real_training(recorded: Recorded):
    report = recompute_steps(recorded.steps, recorded.metrics, recorded.config)
    assert [str(w) for w in report.wrong] == []
    for kind in (
        "penalties",
        "raw task",
        "raw penalty",
        "weight of coherence",
        "normalised curiosity",
        "mean that coherence is normalised by",
        "std that penalty is normalised by",
        "contribution of penalty",
        "reward of the turn",
        "reward",
        "return",
        "mean of the group",
        "std of the group",
        "advantage",
        "advantage trained on",
        "weight of replay",
        "advantage of replay",
        "policy-gradient term",
        "metric train/loss",
        "metric train/clip_fraction",
        "metric kl/mean",
        "metric rewards/total/mean",
    ):
        assert report.compared[kind], kind
    assert any(m["train/clip_fraction"] > 0 for m in recorded.metrics.values() if "train/clip_fraction" in m)


@pytest.mark.parametrize(
    ("settings", "rewards"),
    [
        ({"advantages": "turn", "scale_advantages": "batch", "loss_type": "grpo"}, {}),
        (
            {"advantages": "reward", "loss_type": "dr_grpo"},
            {"w_curiosity": 0.0, "w_coherence": 0.0},
        ),
        ({"replay": {"mode": "dapo"}, "scale_advantages": "none"}, {"normalization": {"curiosity": "scale_only"}}),
        ({"replay": {"signal": "task"}}, {}),
        ({"advantages": "gdpo", "compare_shaping": "group"}, {"anneal_steps": 3}),
        ({"advantages": "gdpo", "compare_shaping": "peers", "replay": {"mode": "off"}}, {"anneal_steps": 5}),
        ({"advantages": "gigpo"}, {}),
        ({"advantages": "tree"}, {"normalization": {"penalty": "group"}}),
        ({"advantages": "tree", "scale_advantages": "batch", "replay": {"mode": "dapo"}}, {}),
        # The training of `recorded` is summed, and the first case scales by the batch.
        pytest.param({"compare_shaping": "group"}, {}, marks=pytest.mark.stress),
        pytest.param({"scale_advantages": "batch"}, {}, marks=pytest.mark.stress),
        (
            {
                "replay": {"mode": "off"},
                "trl": {"importance_sampling_level": "sequence"},
                "beta_mode": "fixed",
                "beta": 0.0,
            },
            {},
        ),
    ],
    ids=[
        *("turns", "rewards", "dapo", "task", "gdpo", "peers", "states", "tree", "trees of rounds", "summed"),
        *("batch", "off"),
    ],
)
def test_other_settings_come_out_again_too(tmp_path, settings: dict[str, Any], rewards: dict[str, Any]):
    folder = two_steps(tmp_path, rewards, **settings)
    assert run(folder) == 0
    with RunReader(folder) as reader:
        report = recompute(reader, read_config(folder))
    assert [str(w) for w in report.wrong] == []
    assert report.compared.total() > 500


def test_metrics_of_dynamic_sampling_are_of_all_its_rounds(tmp_path):
    folder = two_steps(tmp_path, replay={"mode": "dapo", "min_group_std": 0.2})
    assert run(folder) == 0
    with RunReader(folder) as reader:
        report = recompute(reader, read_config(folder))
        metrics = reader.metrics.by_step()
        for step, items in steps_of(reader):
            totals = [i.record.breakdown.total or 0.0 for i in items if i.record.breakdown is not None]
            assert len(totals) > 3 * 4, "no further round was made"
            assert metrics[step]["rewards/total/mean"] == pytest.approx(sum(totals) / len(totals))
    assert [str(w) for w in report.wrong] == []
    assert report.compared["metric rewards/raw/penalty"] == report.compared["metric success/train"] == 2


@pytest.mark.parametrize("told", [True, False], ids=["recorded", "earlier version"])
def test_penalties_are_those_that_were_in_force(tmp_path, told: bool):
    folder = two_steps(tmp_path, {"penalties": {"unparsable_call": 0.0, "no_final_answer": -0.2}})
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert run(folder) == 0
    # A version that knows one rule more reads the configuration with that rule's default.
    del config["rewards"]["penalties"]["unparsable_call"]
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    if not told:
        with sqlite3.connect(folder / DATABASE) as db:
            db.execute("DELETE FROM events WHERE kind = 'rewards'")
    with RunReader(folder) as reader:
        report = recompute(reader, read_config(folder))
        in_force = [event.data for event in reader.events(kinds=["rewards"])]
    assert report.compared["penalties"]
    wrong = {str(w).partition(" is recorded")[0].rpartition(": ")[2] for w in report.wrong}
    assert not wrong if told else wrong <= {"penalties"}
    if told:
        assert in_force[0]["weights"]["penalty"] == 1.0 and in_force[0]["rules"]["no_final_answer"] == -0.2


def test_scores_of_reward_functions_come_out_again_too(tmp_path):
    folder = two_steps(tmp_path, {"normalization": {"functions": "group"}})
    (tmp_path / "mine.py").write_text("def size(completions, **kwargs):\n    return [len(str(c)) for c in completions]")
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["environment"]["reward_funcs"] = {f"{tmp_path / 'mine.py'}:size": 0.01}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    assert run(folder) == 0
    with RunReader(folder) as reader:
        report = recompute(reader, read_config(folder))
    assert [str(w) for w in report.wrong] == []
    assert report.compared["weight of size"] and report.compared["normalised size"]


def test_what_the_environment_pays_comes_out_again_too(tmp_path):
    folder = two_steps(tmp_path)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["environment"]["class_path"] = f"{Path(__file__).with_name('paying_env.py')}:PayingEnv"
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    assert run(folder) == 0
    with RunReader(folder) as reader:
        report = recompute(reader, read_config(folder))
        steps = [(step, list(items)) for step, items in steps_of(reader)]
        paid = [(step, i, item) for step, items in steps for i, item in enumerate(items) if pays(item)]
        assert [str(w) for w in report.wrong] == [] and report.compared["raw environment"] and paid
        step, index, chosen = paid[0]
        changed = change("record.breakdown.steps.0.components.environment.raw")(chosen)
        dict(steps)[step][index] = changed
        assert recompute_steps(steps, reader.metrics.by_step(), read_config(folder)).wrong


def pays(item: RecordedRollout) -> bool:
    steps = item.record.breakdown.steps  # type: ignore[union-attr]
    return "environment" in steps[0].components and bool(steps[0].components["environment"].raw)


# -- one number changed at a time, in memory -------------------------------------------------------------------------


def change(path: str, by: Any = 0.01) -> Callable[[Any], Any]:
    """A function that changes what lies at a path of attributes, keys and indices: a number by `by`, else to `by`."""
    head, _, rest = path.partition(".")

    def inner(value: Any) -> Any:
        if rest:
            return change(rest, by)(value)
        return value + by if isinstance(by, (int, float)) and not isinstance(by, bool) else by

    def apply(value: Any) -> Any:
        if isinstance(value, dict):
            return {**value, head: inner(value[head])}
        if isinstance(value, (tuple, list)):
            index = int(head) % len(value)
            return (*value[:index], inner(value[index]), *value[index + 1 :])
        return replace(value, **{head: inner(getattr(value, head))})

    return apply


def any_item(item: RecordedRollout) -> bool:
    return (
        item.row.step == 3
        and item.record.use is not None
        and item.record.use.kind == "trained"
        and len(item.tokens_by_turn) == 2
    )


def penalised(item: RecordedRollout) -> bool:
    return any_item(item) and bool(item.record.breakdown.steps[0].penalties)  # type: ignore[union-attr]


def later(item: RecordedRollout) -> bool:
    return any(use.kind == "replayed" for use in item.uses)


def left_out(item: RecordedRollout) -> bool:
    return item.record.use is not None and item.record.use.kind in ("filtered", "replaced")


STEP = "record.breakdown.steps.0"
SHAPED, NORMALISED = ("penalty", "curiosity"), ("curiosity", "coherence", "penalty")
VALUE = ("raw", "normalized", "weight", "contribution")
OF_COMPARISONS = ("row.advantage", "record.formula", "record.advantage", "record.step_advantages")
"""What follows from how shaping is compared."""
Change = tuple[str, Any, Callable[[RecordedRollout], bool]]
CHANGES: list[Change] = [
    ("record.trajectory.correct", True, any_item),
    ("record.policy_version", 1, any_item),
    ("row.reward", 0.01, any_item),
    ("row.advantage", 0.01, any_item),
    ("row.correct", True, any_item),
    ("row.turns", 1, any_item),
    ("row.tokens", 1, any_item),
    ("record.breakdown.total", 0.01, any_item),
    (f"{STEP}.total", 0.01, any_item),
    (f"{STEP}.penalties.0.amount", -0.01, penalised),
    (f"{STEP}.penalties.0.rule", "unknown_tool", penalised),
    (f"{STEP}.penalties", (), penalised),
    *((f"{STEP}.components.{c}.{n}", 0.01, any_item) for c in SHAPED for n in VALUE),
    ("record.breakdown.steps.-1.components.task.raw", 0.01, any_item),
    ("record.breakdown.steps.-1.components.coherence.normalized", 0.01, any_item),
    *((f"record.breakdown.normalized_by.{c}.{n}", 0.01, any_item) for c in NORMALISED for n in ("mean", "std")),
    ("record.breakdown.normalized_by.coherence.mode", "scale_only", any_item),
    *((f"record.formula.steps.0.0.{n}", 0.01, any_item) for n in ("value", "mean", "std", "weight")),
    ("record.formula.steps.0.0.size", 1, any_item),
    ("record.formula.method", "turn", any_item),
    ("record.advantage", 0.01, any_item),
    ("record.step_advantages.1", 0.01, any_item),
    ("record.use.kind", "filtered", any_item),
    ("record.use.kind", "trained", left_out),
    ("record.use.advantage", 0.01, any_item),
    ("record.advantage", 0.5, left_out),
    ("record.use.loss.tokens", 1, any_item),
    ("record.use.loss.policy", 0.1, any_item),
    ("record.use.loss.ratio.0", 0.1, any_item),
    ("record.use.loss.low.0", 1, any_item),
    ("record.use.loss.kl", 5.0, any_item),
    ("record.use.loss.entropy", 0.01, any_item),
    ("record.use.loss", None, any_item),
    ("record.log_ratio_sum", 0.01, any_item),
    ("uses.-1.weight", 0.01, later),
    ("uses.-1.advantage", 0.01, later),
    ("uses.-1.step", 1, later),
    ("uses.-1.loss.policy", 0.1, later),
]  # fmt: skip


def with_each(values: Iterable[Any], names: Iterable[str], differs: Iterable[str] = ()) -> list[Any]:
    """Cases on both trainings. The short form keeps the second training where its numbers are others' functions."""
    return [
        pytest.param(compared, value, id=f"{compared}-{name}",
                     marks=[pytest.mark.stress] * (compared == "peers" and not name.startswith(tuple(differs))))
        for compared in ("group", "peers") for value, name in zip(values, names, strict=True)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("recorded", "changed"),
    with_each(CHANGES, [f"{p}={b}" for p, b, _ in CHANGES], OF_COMPARISONS),
    indirect=["recorded"],
)
def test_a_changed_number_is_found(recorded: Recorded, changed: Change):
    path, by, where = changed
    chosen = next(item for _, items in recorded.steps for item in items if where(item))
    other = change(path, by)(chosen)
    steps = [(s, [other if item is chosen else item for item in items]) for s, items in recorded.steps]
    assert recompute_steps(steps, recorded.metrics, recorded.config).wrong


METRICS = (
    "train/loss",
    "train/entropy",
    "train/clip_fraction",
    "kl/mean",
    "kl/beta",
    "success/train",
    "advantage/std",
    "rewards/total/mean",
    "rewards/running_std/coherence",
    "rewards/advantage_share/task",
    "grpo/filtering_rate",
    "tokens/agent",
)


@pytest.mark.parametrize(("recorded", "name"), with_each(METRICS, METRICS), indirect=["recorded"])
def test_a_changed_metric_is_found(recorded: Recorded, name: str):
    metrics = {**recorded.metrics, 3: {**recorded.metrics[3], name: recorded.metrics[3][name] + 0.5}}
    assert recompute_steps(recorded.steps, metrics, recorded.config).wrong


def test_a_rollout_that_is_missing_is_found(recorded: Recorded):
    steps = [(s, items[1:] if s == 2 else items) for s, items in recorded.steps]
    assert recompute_steps(steps, recorded.metrics, recorded.config).wrong


# -- the command ------------------------------------------------------------------------------------------------------


def check(runs: Path, capsys) -> tuple[int, str]:
    code = grpo_tui(["check", "run", "--recompute", "--runs-dir", str(runs)])
    return code, capsys.readouterr().out


def test_the_command_says_how_many_and_which_are_wrong(recorded: Recorded, tmp_path, capsys):
    code, text = check(recorded.folder.parent, capsys)
    assert code == 0 and ", 0 wrong" in text
    shutil.copytree(recorded.folder, tmp_path / "runs" / "run")
    with sqlite3.connect(tmp_path / "runs" / "run" / DATABASE) as db:
        db.execute("UPDATE uses SET weight = weight * 1.1 WHERE (n, step) = (SELECT n, step FROM uses LIMIT 1)")
        loss = "(SELECT id FROM metric_names WHERE name = 'train/loss')"
        db.execute(f"UPDATE metrics SET value = value + 1 WHERE step = 2 AND name = {loss}")
    code, text = check(tmp_path / "runs", capsys)
    assert code == 1 and ", 2 wrong" in text
    assert "weight of replay is recorded as" in text and "step 2: metric train/loss is recorded as" in text
