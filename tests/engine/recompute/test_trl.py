"""Trainings with TRL come out again from their record, and a number that was changed is found."""

from __future__ import annotations

import math
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.mutants.catalogue import CONFIGURATIONS, MUTATIONS
from benchmarks.mutants.training import run, source_of
from grpo_tui.engine.recompute.ledger import Report
from grpo_tui.engine.recompute.trl.check import Walk, recompute_trl
from grpo_tui.engine.recompute.trl.generation import score
from grpo_tui.engine.recompute.trl.loss import LossRow, expected
from grpo_tui.engine.recompute.trl.settings import Settings
from grpo_tui.engine.runs.paths import DATABASE
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.updates import FOLDER, Block, UpdateLog, read_updates

CHECKED = "tools, corrected KL, two-sided clipping"
"""A configuration with every kind of number."""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of an unmodified training."""
    folder = tmp_path_factory.mktemp("trl") / "it"
    outcome = run(None, CONFIGURATIONS[CHECKED], 0, folder)
    assert (outcome.error, outcome.found) == ("", "")
    return folder / "runs" / "run"


def check(folder: Path) -> Report:
    with RunReader(folder) as reader:
        return recompute_trl(reader)


def rewritten(recorded: Path, folder: Path, change: Callable[[Block], Block | None]) -> Path:
    """A copy of a run whose blocks were changed, or left out (None)."""
    copy = folder / "copy"
    shutil.copytree(recorded, copy, ignore=shutil.ignore_patterns(FOLDER))
    log = UpdateLog(copy, "training")
    for block in read_updates(recorded):
        if (changed := change(block)) is not None:
            log.write(changed)
    log.close()
    return copy


def test_each_kind_of_number_is_compared(recorded: Path) -> None:
    report = check(recorded)
    assert [str(w) for w in report.wrong] == []
    for kind in (
        "prompts in the group", "rollouts in the group", "weighted sum of rewards", "advantage", "metric reward_std",
        "metric rewards/letters/mean", "tokens in the mask", "tokens that the loss divides by", "advantage in the loss",
        "log-probs of the reference", "sum of log-probs before the update", "gradient of the loss for the log-prob",
        "gradient of masked tokens", "factor of the loss", "loss", "metric kl", "metric entropy",
        "metric clip_ratio/region_mean", "logged kl", "logged loss", "logged reward",
    ):  # fmt: skip
        assert report.compared[kind], kind


def first_row(name: str, by: float) -> Callable[[Block], Block]:
    """Add to a number of the first row of each micro-batch."""

    def change(block: Block) -> Block:
        if block.kind != "loss":
            return block
        rows = [dict(row) for row in block.data["rows"]]
        rows[0][name] += by
        return replace(block, data={**block.data, "rows": rows})

    return change


def array(name: str, by: float) -> Callable[[Block], Block]:
    def change(block: Block) -> Block:
        if block.kind != "loss":
            return block
        values = list(block.arrays[name])
        values[0] += by
        return replace(block, arrays={**block.arrays, name: values})

    return change


def number(kind: str, name: str, factor: float) -> Callable[[Block], Block]:
    def change(block: Block) -> Block:
        if block.kind != kind:
            return block
        data = dict(block.data)
        metrics = dict(data.get("metrics") or {})
        place = metrics if name in metrics else data
        place[name] *= factor
        return replace(block, data={**data, "metrics": metrics})

    return change


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (first_row("advantage", 0.01), "advantage in the loss"),
        (first_row("outside", 0.1), "gradient of masked tokens"),
        (array("gradient", 0.002), "gradient of the loss for the log-prob"),
        (array("ref_per_token_logps", 0.1), "gradient of the loss for the log-prob"),
        (number("loss", "loss", 1.01), "loss"),
        (number("loss", "scale", 2.0), "factor of the loss"),
        (number("loss", "kl", 1.01), "metric kl"),
        (number("loss", "entropy", 1.01), "metric entropy"),
        (number("generation", "items", 0.5), "tokens that the loss divides by"),
        (number("generation", "reward_std", 1.01), "metric reward_std"),
        (number("log", "loss", 1.5), "logged loss"),
        (number("log", "entropy", 1.01), "logged entropy"),
    ],
)
def test_a_changed_number_is_the_first_that_is_named(
    recorded: Path, tmp_path: Path, change: Callable[[Block], Block], kind: str
) -> None:
    wrong = check(rewritten(recorded, tmp_path, change)).wrong
    assert wrong and wrong[0].kind == kind, str(wrong[0]) if wrong else "nothing differs"


def test_a_changed_advantage_in_the_list_is_named_with_both_values(recorded: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(recorded, copy)
    with sqlite3.connect(copy / DATABASE) as database:
        database.execute("UPDATE rows SET advantage = advantage + 0.5 WHERE n = 2")
    wrong = check(copy).wrong
    assert wrong[0].kind == "advantage in the list" and wrong[0].place == "step 1, rollout train-1-1"
    assert wrong[0].recorded == pytest.approx(float(str(wrong[0].computed)) + 0.5, abs=1e-4)


def test_a_rollout_that_the_loss_does_not_use_is_named(recorded: Path, tmp_path: Path) -> None:
    def without(block: Block) -> Block | None:
        return None if block.kind == "loss" and block.step == 2 else block

    wrong = check(rewritten(recorded, tmp_path, without)).wrong
    assert "uses in the loss" in {w.kind for w in wrong}


def test_a_file_that_was_cut_off_is_read_to_its_end(recorded: Path, tmp_path: Path) -> None:
    copy = rewritten(recorded, tmp_path, lambda block: block)
    (path,) = (copy / FOLDER).glob("*.bin")
    whole = list(read_updates(copy))
    path.write_bytes(path.read_bytes()[:-7])
    assert [b.kind for b in read_updates(copy)] == [b.kind for b in whole][:-1]


def test_a_later_start_replaces_the_steps_that_it_repeats(tmp_path: Path) -> None:
    for begin, name in ((1, "first"), (3, "second")):
        log = UpdateLog(tmp_path, "training")
        for step in range(begin, begin + 4):
            log.write(Block("log", step, {"by": name}, {"values": [1.5, 2.5]}))
        log.close()
    found = [(b.step, b.data["by"]) for b in read_updates(tmp_path)]
    assert found == [(1, "first"), (2, "first"), (3, "second"), (4, "second"), (5, "second"), (6, "second")]
    assert all(list(b.arrays["values"]) == [1.5, 2.5] for b in read_updates(tmp_path))


def test_numbers_of_a_training_that_diverged_are_kept_and_compared(tmp_path: Path) -> None:
    """The loss is NaN, and so is the mean of a reward function that applied to no rollout."""
    nan = math.nan
    metrics = {"rewards/rare/mean": nan, "reward": 0.5}
    lists: dict[str, list[Any]] = {name: [] for name in ("ids", "lengths", "ended", "in_mask", "in_loss")}
    scored = {**lists, "items": None, "tools": True, "pad_is_eos": False, "metrics": metrics}
    row = {"id": "a", "advantage": 0.5, "tokens": 2, "outside": 0.0, "entropy": nan}
    lost = {"loss": nan, "scale": 1.0, "items": None, "accumulated": 1, "dtype": "float32", "metrics": {"kl": nan}}
    arrays = {"logps": [nan, -1.0], "gradient": [nan, nan]}
    log = UpdateLog(tmp_path, "training")
    log.write(Block("generation", 1, scored))
    log.write(Block("loss", 1, {**lost, "rows": [row], "by_token": False}, arrays))
    log.write(Block("log", 1, {"metrics": {**metrics, "loss": nan}}))
    log.close()
    blocks = list(read_updates(tmp_path))
    assert math.isnan(blocks[0].data["metrics"]["rewards/rare/mean"]) and math.isnan(blocks[1].data["loss"])
    report = Report()
    Walk(report, Settings(loss_type="grpo"), resumed=True).step(1, [], blocks)
    assert report.wrong[0].kind == "rollouts in the loss that were not sampled"
    wrong = len(report.wrong)
    report.numbers("a rollout", "gradient", [nan, 1.0], [nan, 1.0], tolerance=1e-6, size=1.0)
    assert len(report.wrong) == wrong


@pytest.mark.parametrize("name", ["cispo over stale parts", "sequence ratios, used three times"])
def test_unmodified_trainings_raise_no_alarm(tmp_path: Path, name: str) -> None:
    outcome = run(None, CONFIGURATIONS[name], 1, tmp_path / "it")
    assert (outcome.error, outcome.found) == ("", "") and outcome.numbers > 400


def test_a_mutant_is_found(tmp_path: Path) -> None:
    mutation = next(m for m in MUTATIONS["loss"] if m.name == "no gradient flows")
    outcome = run(mutation, mutation.settings, 0, tmp_path / "it")
    assert "gradient of the loss for the log-prob is recorded as 0, but comes to" in outcome.found


def test_a_change_whose_text_is_missing_ends_with_a_sentence() -> None:
    with pytest.raises(SystemExit, match=r"needs its text exactly once .* but it occurs 0 times"):
        source_of(replace(MUTATIONS["loss"][0], old="no such line"))


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("kind", ["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo"])
def test_gradients_are_those_of_automatic_differentiation(kind: str, level: str) -> None:
    random = np.random.default_rng(5)
    settings = Settings(
        loss_type=kind, importance_sampling_level=level, beta=0.07, epsilon=0.1, use_bias_correction_kl=True,
        epsilon_high=1.5 if kind == "cispo" else 0.2, max_completion_length=9, delta=1.6, steps_per_generation=2,
    )  # fmt: skip
    old, new, ref = (random.normal(-2, 0.3, (3, 6)) for _ in range(3))
    mask = np.array([[1, 1, 1, 1, 1, 0], [1, 0, 0, 1, 1, 1], [1, 1, 0, 0, 0, 0]], float)
    advantages = [1.2, -0.7, 0.4]
    rows = [
        LossRow(
            str(i), a, new[i].tolist(), mask[i].tolist(), [0.0] * 6, 0.0, old=old[i].tolist(), reference=ref[i].tolist()
        )
        for i, a in enumerate(advantages)
    ]
    result = expected(rows, settings, accumulated=4, items=23.0)
    logps = torch.tensor(new, requires_grad=True)
    loss = reference_loss(settings, logps, *map(torch.tensor, (old, ref, mask, np.array(advantages))))
    loss.backward()
    assert result.loss == pytest.approx(loss.item(), abs=1e-12)
    assert logps.grad is not None
    assert np.array(result.gradients) == pytest.approx(logps.grad.numpy(), abs=1e-12)


def reference_loss(settings: Settings, logps: Any, old: Any, ref: Any, mask: Any, advantages: Any) -> Any:
    """The published losses, in torch: PPO's clipped surrogate, CISPO, SAPO, and k3 as the KL."""
    a = advantages[:, None]
    log_ratio = logps - old
    if settings.importance_sampling_level == "sequence":
        log_ratio = ((log_ratio * mask).sum(1) / mask.sum(1))[:, None]
    ratio = log_ratio.exp()
    k3 = ((ref - logps).exp() - (ref - logps) - 1) * ratio
    if settings.loss_type == "cispo":
        each = -ratio.clamp(max=settings.epsilon_high).detach() * a * logps
    elif settings.loss_type == "sapo":
        above, below = settings.sapo_temperature_pos, settings.sapo_temperature_neg
        tau = torch.tensor([above if x > 0 else below for x in advantages], dtype=torch.float64)[:, None]
        each = -4 / tau * torch.sigmoid(tau * (ratio - 1)) * a
    else:
        clipped = ratio.clamp(1 - settings.epsilon, 1 + (settings.epsilon_high or 0.0))
        each = -torch.minimum(ratio.clamp(max=settings.delta) * a, clipped * a)
    each = (each + settings.beta * k3) * mask
    if settings.loss_type in ("grpo", "sapo"):
        return (each.sum(1) / mask.sum(1)).mean() / 4
    divisors = {"bnpo": mask.sum() * 4, "dr_grpo": 3 * 9 * 4, "luspo": 3 * 4, "dapo": 23 * 4 / 2, "cispo": 23 * 4 / 2}
    return each.sum() / divisors[settings.loss_type]


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_advantages_are_those_of_numpy(scale: str) -> None:
    random = np.random.default_rng(3)
    values = random.normal(size=(12, 2))
    values[4, 1] = values[7] = math.nan  # one value, and a rollout without any
    rewards = np.nansum(values * [1.0, -0.5], axis=1)
    rewards[7] = math.nan
    groups = rewards.reshape(3, 4)
    right = groups - np.nanmean(groups, 1, keepdims=True)
    if scale != "none":
        std = np.nanstd(groups, 1, ddof=1, keepdims=True) if scale == "group" else np.nanstd(rewards, ddof=1)
        right = right / (std + 1e-4)
    found = score(values.tolist(), [1.0, -0.5], Settings(scale_rewards=scale, num_generations=4))
    assert found.advantages == pytest.approx(np.nan_to_num(right).ravel().tolist(), abs=1e-12)
