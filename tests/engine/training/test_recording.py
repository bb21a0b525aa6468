"""The record has what the trainer computed; and whatever happens to it, training goes on."""

from __future__ import annotations

import logging
import math
import shutil
from contextlib import closing
from typing import Any

import numpy as np
import pytest
import yaml
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast, TrainerCallback

from grpo_tui.configs.loading import load_config
from grpo_tui.configs.metric_names import meaning
from grpo_tui.configs.sections import RewardsConfig
from grpo_tui.configs.sections.rewards import DiagnosisConfig
from grpo_tui.engine.agents.chat import ChatBridge
from grpo_tui.engine.agents.transformers_agent import TransformersAgent
from grpo_tui.engine.imports.check import diagnose
from grpo_tui.engine.record.step_recorder import StepRecorder, record_vocabulary
from grpo_tui.engine.rollouts.rollout import Rollout
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.write.writer import NullWriter, RunWriter
from grpo_tui.engine.training.callbacks import RunCallbacks
from grpo_tui.engine.training.callbacks.recording import GRPORecording
from grpo_tui.engine.training.rft import build_trainer, run_rft
from grpo_tui.envs.trajectory import Trajectory
from grpo_tui.rewards import learning_detectors
from grpo_tui.rewards.orchestrator import RewardOrchestrator

from .parts import make_trainer, policy, tokenizer
from .runs import make_run

CALCULATOR = "grpo_tui.envs.calculator.CalculatorEnv"


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tmp_path_factory.mktemp("model") / "base"


class Broken:
    """A writer whose disk has gone."""

    def __getattr__(self, name: str) -> Any:
        def fail(*args: Any, **kwargs: Any) -> Any:
            raise OSError("no space left on device")

        return fail


def calculator_rows(n: int) -> list[dict[str, Any]]:
    import json

    from grpo_tui.envs.calculator import CalculatorEnv

    tasks = CalculatorEnv().make_tasks("train", n, 0)
    config = json.dumps({"max_turns": 2})
    return [{"env_class_path": CALCULATOR, "env_config": config, "task_data": json.dumps(t)} for t in tasks]


def acting_trainer(folder: Any, **changes: Any) -> Any:
    model = policy(lora=True)
    agent = TransformersAgent(model, tokenizer(), max_turn_tokens=5, max_trajectory_tokens=256)
    return make_trainer(folder, calculator_rows(8), model=model, agent=agent, **changes)


def test_pieces_of_a_vocabulary_with_maltese_letters_are_shown_as_text(tmp_path):
    pieces = WordLevel({"▁the": 0, "Ġajn": 1, "é": 2, "<0x0A>": 3}, unk_token="é")
    with closing(RunWriter(tmp_path)) as writer:
        record_vocabulary(writer, PreTrainedTokenizerFast(tokenizer_object=Tokenizer(pieces)))
    with RunReader(tmp_path) as reader:
        assert reader.bodies.token_texts(range(4)) == [" the", "Ġajn", "é", "\n"]


def test_a_record_that_fails_is_told_once_and_training_goes_on(tmp_path, caplog):
    trainer = acting_trainer(tmp_path, max_steps=3)
    broken: Any = Broken()
    RunCallbacks(GRPORecording(trainer, StepRecorder(broken), None), trainer.runner)
    with caplog.at_level(logging.ERROR):
        trainer.train()
    assert trainer.state.global_step == 3
    told = [r.getMessage() for r in caplog.records if "training continues" in r.getMessage()]
    assert len(told) == len(set(told))
    assert {"metrics could not be recorded; training continues"} <= set(told)


def test_training_goes_on_when_the_runs_folder_is_removed(tmp_path, base, caplog):
    folder = make_run(tmp_path / "run", base, max_steps=4, output_dir=str(tmp_path / "adapters"))
    config = load_config(folder / "config.yaml")
    writer = RunWriter(folder)
    recorder = StepRecorder(writer)
    trainer, _ = build_trainer(config, folder, recorder)

    class Remove(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 1:
                writer.flush(10)
                shutil.rmtree(folder)

    trainer.add_callback(Remove())
    trainer.train()
    writer.flush(5)
    writer.close()
    assert trainer.state.global_step == 4
    assert len([m for m in caplog.messages if m.startswith("record: ") and "removed" in m]) == 1


def test_recorded_numbers_are_those_that_were_trained_on(tmp_path, base):
    folder = make_run(tmp_path / "run", base, max_steps=2, output_dir=str(tmp_path / "adapters"), advantages="turn")
    config = load_config(folder / "config.yaml")
    writer = RunWriter(folder)
    recorder = StepRecorder(writer)
    trainer, callbacks = build_trainer(config, folder, recorder)
    kept: dict[int, list[Any]] = {}
    callbacks.recording.observers.append(lambda step, _: kept.update({step: list(trainer.rollouts.generated)}))
    trainer.train()
    writer.flush(10)
    writer.close()
    reader = RunReader(folder)
    used = 0
    for step, samples in kept.items():
        for sample in samples:
            record = reader.bodies.trajectory(sample.trajectory.id)
            tokens = reader.bodies.tokens(sample.trajectory.id)
            assert record.breakdown is not None and tokens is not None
            assert record.breakdown.total == pytest.approx(sample.breakdown.total, abs=1e-6)
            assert record.breakdown.total == pytest.approx(float(sample.turn_rewards.sum()), abs=1e-5)
            assert np.array_equal(tokens.token_ids, sample.token_ids)
            assert np.allclose(np.asarray(tokens.advantages), sample.advantages, atol=1e-3)
            assert np.allclose(tokens.logprobs, sample.logprobs, atol=1e-2)
            assert record.advantage == pytest.approx(sample.advantages[sample.agent_mask].mean(), abs=1e-5)
            if record.use is not None and record.use.loss is not None:
                assert record.use.loss.advantage == pytest.approx(record.advantage, abs=1e-3)
                used += 1
            for turn, advantage in enumerate(record.step_advantages):
                where = sample.agent_mask & (sample.turn_ids == turn)
                assert advantage == pytest.approx(sample.advantages[where].mean(), abs=1e-5)
        totals = [s.breakdown.total for s in samples]
        assert dict(reader.metrics.points("rewards/total/mean"))[step] == pytest.approx(np.mean(totals), abs=1e-6)
    assert used >= 2
    latest = reader.metrics.latest()
    for phase in ("generate", "environment", "reward", "logprobs", "backward", "record", "step"):
        assert latest[f"time/{phase}"] >= 0, phase
    for name in ("grpo/filtering_rate", "grpo/replay_share", "kl/mean", "kl/beta", "train/loss", "train/entropy"):
        assert math.isfinite(latest[name]), name
    assert [name for name in latest if not meaning(name)] == []
    reader.close()


def test_reference_log_probs_and_embeddings_come_from_one_pass(tmp_path):
    """Shaped rewards and the KL both on: one frozen pass a step, none of its own for the embeddings."""
    trainer = acting_trainer(tmp_path, orchestrator=RewardOrchestrator(config=RewardsConfig()), beta=0.1, max_steps=2)
    trainer.agent.start([[{"role": "user", "content": "x"}]])  # what is tried before it is no pass of a step
    calls = {"backbone": 0}
    base = trainer.policy.base.base_model
    train_forwards: list[bool] = []

    def count(module: Any, inputs: Any, output: Any) -> None:
        if output.past_key_values is None:  # not a step of decoding
            calls["backbone"] += 1
            train_forwards.append(module.training)

    base.register_forward_hook(count)
    trainer.train()
    assert calls["backbone"] == 4  # in each of two steps one frozen pass and one with gradient
    assert train_forwards == [False, True, False, True]
    assert all(s.embeddings is not None and s.ref_logprobs is not None for s in trainer.rollouts.generated)


def test_embeddings_are_means_of_last_hidden_states_over_a_turns_tokens(tmp_path):
    import torch

    trainer = acting_trainer(tmp_path, orchestrator=RewardOrchestrator(config=RewardsConfig()), beta=0.1, max_steps=1)
    trainer.train()
    model = policy(lora=True)  # as it was at the start: the reference
    for sample in trainer.rollouts.generated[:4]:
        with torch.no_grad():
            hidden = model(input_ids=torch.from_numpy(sample.token_ids)[None], output_hidden_states=True).hidden_states
        last = hidden[-1][0].numpy()
        for turn in range(sample.turns):
            where = sample.agent_mask & (sample.turn_ids == turn)
            assert np.allclose(sample.embeddings[turn], last[where].mean(0), atol=1e-4)


def test_alerts_of_the_detectors_are_in_the_record(tmp_path, base, monkeypatch):
    monkeypatch.setattr(DiagnosisConfig, "movement", 1e9)
    found, seen = {}, ChatBridge.seen

    def cut(shown: Any) -> Any:
        return shown._replace(ids=shown.ids[-3:])

    for compared in ("group", "peers"):
        if compared == "peers":
            monkeypatch.setattr(ChatBridge, "seen", lambda *args, **named: cut(seen(*args, **named)))
        folder = make_run(tmp_path / compared, base, max_steps=8, compare_shaping=compared, eval_every=4, eval_tasks=2)
        settings = yaml.safe_load((folder / "config.yaml").read_text())
        settings["rewards"]["diagnosis"] = {"window": 5, "advantage_share": 0.4, "entropy_fall": 0.98}
        (folder / "config.yaml").write_text(yaml.safe_dump(settings))
        config = load_config(folder / "config.yaml")
        writer = RunWriter(folder)
        run_rft(config, folder, writer)
        writer.flush(10)
        writer.close()
        with RunReader(folder) as reader:
            alerts = reader.events(kinds=["alert"], limit=100)
            again = diagnose(reader, config).found()
        first: dict[tuple[str, ...], Any] = {}
        for event in alerts:
            key = tuple(event.data[name] for name in ("detector", "subject", "severity"))
            first.setdefault(key, (event.step, event.data["threshold"]))
        assert first == {
            (f.finding.detector, f.finding.subject, f.finding.severity): (f.step, f.finding.threshold) for f in again
        }, "the record gives the same faults at the same steps as the training did"
        assert all({"detector", "value", "threshold", "trajectories"} <= set(a.data) for a in alerts)
        found[compared] = {a.data["detector"] for a in alerts}
    assert all("no_movement" in names for names in found.values())
    assert "prompt_cut" in found["peers"] and "prompt_cut" not in found["group"]
    # A random policy only writes what cannot be parsed: shaping is all that its returns differ by.
    assert "advantage_share" in found["group"] and "advantage_share" not in found["peers"]


def test_a_chosen_cause_stops_the_run_with_a_checkpoint(tmp_path, base, monkeypatch):
    from grpo_tui.engine.runs.control.status import look
    from grpo_tui.engine.training.__main__ import run

    monkeypatch.setattr(DiagnosisConfig, "movement", 1e9)
    monkeypatch.setattr(learning_detectors, "RANDOM_ENTROPY", 1e9)  # this policy is random
    folder = make_run(tmp_path / "stopped", base, max_steps=12, eval_every=20)
    settings = yaml.safe_load((folder / "config.yaml").read_text())
    for name, code, status in (("no_movment", 1, "crashed"), ("no_movement", 0, "stopped")):
        settings["rewards"]["diagnosis"] = {"stop_on": [name]}
        (folder / "config.yaml").write_text(yaml.safe_dump(settings))
        assert run(folder) == code
        assert look(folder).status == status
    assert 5 <= look(folder).step < 12
    assert (folder / "checkpoints" / f"checkpoint-{look(folder).step}").is_dir()


def test_a_rollout_without_a_trajectory_is_not_recorded_and_the_one_beside_it_is():
    trajectory = Trajectory("a", "e", "p", "g", 0, "", ())
    arrays = {"token_ids": np.zeros(2, np.int64), "agent_mask": np.array([False, True])}
    arrays |= {"turn_ids": np.array([-1, 0], np.int16), "rewards": np.zeros(2, np.float32)}
    rows: list[Any] = []

    class Writer(NullWriter):
        def trajectories(self, step: int, records: Any) -> None:
            rows.extend(records)

    rollouts = [Rollout(**arrays, group=0, index=0), Rollout(**arrays, group=0, index=1, trajectory=trajectory)]
    StepRecorder(Writer()).trajectories(3, rollouts, "train")
    assert [row.trajectory for row in rows] == [trajectory]
