"""Rescoring a run must give the advantages that a training with those rewards recorded for the same rollouts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from grpo_tui.configs.loading import load_config
from grpo_tui.engine.launch.settings import read_config
from grpo_tui.engine.recompute.items import RecordedRollout, steps_of
from grpo_tui.engine.recompute.rescore import Rescored, RescoreError, rescore
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.tui.cli.rescore import judged
from tests.e2e.world import grpo_tui, save_model, write_world
from tests.forked import forked_processes, train

FUNCTIONS = """
def short(completions, **kwargs):
    return [1.0 / (1 + len(c[-1]["content"])) for c in completions]

def vowels(completions, letter, **kwargs):
    return [float(c[-1]["content"].count(x)) for c, x in zip(completions, letter)]
"""
PENALISED = ("rewards.w_penalty=0.5", "rewards.penalties.unparsable_call=-0.3")
"""Settings of trainings whose first step samples the same rollouts."""
WORLDS = {
    "plain": (),
    "weights": ("rewards.w_environment=0.2", "rewards.w_coherence=0.5"),
    "penalties": PENALISED,
    "normalised": ("rewards.normalization.environment=group", "rewards.normalization.task=group"),
    "filtered": ("training.replay.mode=ssr", "rewards.w_environment=0.5"),
    "turns": ("training.advantages=turn", "rewards.w_environment=3"),
    "batch": ("training.scale_advantages=batch", "training.compare_shaping=group", "rewards.w_coherence=0.3"),
    "functions": ('environment.reward_funcs={"functions.py:short": 1.0, "functions.py:vowels": 0.5}',),
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of one step for each of `WORLDS`, all from the same model and seed."""
    folder = tmp_path_factory.mktemp("world")
    (folder / "functions.py").write_text(FUNCTIONS)
    config = write_world(folder, save_model(folder / "model"), max_steps=1, prompts_per_step=8)
    config.write_text(config.read_text() + "  replay: {mode: 'off'}\n")
    for name, settings in WORLDS.items():
        if name == "plain":  # the one that commands look for
            done = grpo_tui(folder, "train", "letters.yaml", "--run-id", name, "--headless")
            assert done.returncode == 0, done.stderr
        else:
            train(folder / "runs" / name, config, settings, cwd=folder)
    return folder


def items_of(folder: Path) -> list[RecordedRollout]:
    with RunReader(folder) as reader:
        return [item for _, items in steps_of(reader) for item in items]


def rescored(world: Path, source: str, target: str, monkeypatch: pytest.MonkeyPatch) -> Rescored:
    monkeypatch.chdir(world)
    old, new = (read_config(world / "runs" / name) for name in (source, target))
    with RunReader(world / "runs" / source) as reader, forked_processes():
        return rescore(steps_of(reader), old, new, judged(old, new, str(world / "runs" / source)))


def signed(item: RecordedRollout) -> float:
    """The advantage in the loss; 0 where the group was filtered out."""
    own = item.record.use
    return (item.record.advantage or 0.0) if own is not None and own.kind == "trained" else 0.0


@pytest.mark.parametrize("target", WORLDS)
@pytest.mark.parametrize("source", ["plain", "penalties"])
def test_the_flips_are_those_between_two_trainings(
    world: Path, source: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, theirs = items_of(world / "runs" / source), items_of(world / "runs" / target)
    texts = [[[s.text for s in i.record.trajectory.steps] for i in items] for items in (mine, theirs)]
    assert texts[0] == texts[1] and len(mine) == 32  # the same rollouts
    expected = {
        (a.row.id.rsplit("-", 1)[-1], a.record.trajectory.prompt): (signed(a), signed(b))
        for a, b in zip(mine, theirs, strict=True)
        if signed(a) * signed(b) < 0
    }
    result = rescored(world, source, target, monkeypatch)
    prompts = {item.row.id: item.record.trajectory.prompt for item in mine}
    found = {(f.rollout.rsplit("-", 1)[-1], prompts[f.rollout]): (f.before, f.after) for f in result.flips}
    assert found.keys() == expected.keys()
    for key, pair in expected.items():
        assert found[key] == pytest.approx(pair, abs=2e-5)
    rewards = [
        sum((i.record.breakdown and i.record.breakdown.total) or 0.0 for i in items) / 32 for items in (mine, theirs)
    ]
    assert result.reward == pytest.approx(rewards, abs=1e-6)
    if target in ("weights", "turns", "functions"):
        assert result.flips
    if source == target:
        assert not result.flips and not result.gained and not result.lost
    else:
        signal = [{i.record.trajectory.prompt for i in items if signed(i)} for items in (mine, theirs)]
        assert len(result.gained) == len(signal[1] - signal[0]) and len(result.lost) == len(signal[0] - signal[1])


def test_shaping_that_was_off_cannot_be_weighted(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RescoreError, match=r"curiosity has weight 0\.01, but the run did not record it"):
        rescored(world, "functions", "plain", monkeypatch)
    result = rescored(world, "functions", "functions", monkeypatch)
    assert result.rollouts == 32 and not result.flips


def test_the_command_names_causes(world: Path) -> None:
    done = grpo_tui(world, "rescore", "plain", "--reward", "functions.py:short", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["rollouts"] == 32 and sum(result["causes"].values()) == len(result["flips"]) > 0
    text = grpo_tui(world, "rescore", "plain", "--set", "rewards.w_environment=0.2").stdout
    assert "advantages change sign" in text and "exact for the recorded rollouts" in text


def test_a_number_that_was_not_recorded_is_one_sentence(world: Path) -> None:
    done = grpo_tui(
        world, "train", "letters.yaml", "--run-id", "bare", "--headless", "--set", "rewards.w_coherence=0",
        "--set", "rewards.w_curiosity=0",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    done = grpo_tui(world, "rescore", "bare", "--set", "rewards.w_coherence=0.5")
    assert done.returncode == 2 and "coherence has weight 0.5, but the run did not record it" in done.stderr
    assert load_config(str(world / "runs" / "bare" / "config.yaml")).rewards.w_coherence == 0
