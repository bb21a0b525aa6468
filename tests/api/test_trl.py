"""Stock TRL with `attach`: the record equals TRL's own logs, and the training is the same to the bit."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM, TrainerCallback, set_seed
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

import grpo_tui.trl as hook
from grpo_tui.engine.demonstration import policies
from grpo_tui.engine.runs.control.status import look
from grpo_tui.engine.runs.read.reader import RunReader
from tests.repeated import lighten_trainings

STEPS = 4


@pytest.fixture(scope="module", autouse=True)
def _light() -> None:
    lighten_trainings()


def letters(completions: list[Any], **columns: Any) -> Any:
    """How much of a completion is letters; does not apply to an empty one."""
    texts = [c[0]["content"] if isinstance(c, list) else c for c in completions]
    return [sum(t.isalpha() for t in text) / len(text) if text else None for text in texts]


def short(completions: list[Any], **columns: Any) -> Any:
    texts = [c[0]["content"] if isinstance(c, list) else c for c in completions]
    return [1.0 / (1 + len(text)) for text in texts]


def trainer(folder: Path, model: Any, tokenizer: Any, **more: Any) -> Any:
    settings: dict[str, Any] = {
        "output_dir": str(folder / "out"),
        "max_steps": STEPS,
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 8,
        "learning_rate": 1e-3,
        "reward_weights": [1.0, 0.25],
        "use_cpu": True,
        "bf16": False,
        "beta": 0.0,
        "report_to": [],
        "logging_steps": 1,
        "save_strategy": "no",
        "seed": 3,
    }
    rows = [{"prompt": f"colour at {i} {i}?", "level": i} for i in range(16)]
    functions = more.pop("reward_funcs", [letters, short])
    return GRPOTrainer(
        model=model, reward_funcs=functions, args=GRPOConfig(**settings | more),
        train_dataset=Dataset.from_list(rows), eval_dataset=Dataset.from_list(rows[:2]), processing_class=tokenizer,
    )  # fmt: skip


def small() -> tuple[Any, Any]:
    """A model and a tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(Path(policies.__file__).parent / "base")
    set_seed(3)
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=2, head_dim=16,
        num_attention_heads=2, num_key_value_heads=1, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    return Qwen3ForCausalLM(config), tokenizer


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The same training twice, recorded and not; what TRL logged; the folder of the run."""
    folder = tmp_path_factory.mktemp("trl")
    weights, logs = [], []
    for recorded in (False, True):
        model, tokenizer = small()
        made = trainer(folder, model, tokenizer)
        if recorded:
            attached = hook.attach(made, run="trl-run", runs_dir=folder / "runs")
            assert attached.source == "generation"
            assert hook.attach(made, run="again", runs_dir=folder / "runs") is attached
            logs = keep_logs(made)
        made.train()
        weights.append({n: p.detach().clone() for n, p in made.model.named_parameters()})
    return weights, logs, folder / "runs" / "trl-run", tokenizer


def keep_logs(made: Any) -> list[dict[str, Any]]:
    """What TRL's own `_logs` held after each generation."""
    kept: list[dict[str, Any]] = []
    generate = made._generate_and_score_completions

    def keeping(inputs: Any) -> Any:
        batch = generate(inputs)
        logs = made._logs
        rewards = {k: list(v)[-8:] for k, v in logs["rewards"].items()}
        kept.append({k: list(logs[k])[-8:] for k in ("prompt", "completion", "advantages")} | {"rewards": rewards})
        return batch

    made._generate_and_score_completions = keeping  # type: ignore[method-assign]
    return kept


def test_the_weights_are_those_of_a_training_that_is_not_recorded(trained: Any) -> None:
    (plain, recorded), *_ = trained
    assert plain.keys() == recorded.keys()
    assert all(torch.equal(plain[name], recorded[name]) for name in plain)


def test_every_rollout_is_recorded_with_what_trl_logged(trained: Any) -> None:
    _, logs, run, tokenizer = trained
    assert look(run).status == "finished" and look(run).total_steps == STEPS
    with RunReader(run) as reader:
        assert reader.rollouts.total() == 8 * STEPS and len(logs) == STEPS
        for step, batch in enumerate(logs, 1):
            rows = [r for r in reader.rollouts.rows(range(1, 8 * STEPS + 1)) if r.step == step]
            assert len(rows) == 8 and len({r.group for r in rows}) == 2
            for i, row in enumerate(rows):
                record = reader.bodies.trajectory(row.n)
                assert record.trajectory.prompt == batch["prompt"][i]
                assert record.trajectory.steps[0].text == batch["completion"][i]
                assert record.advantage == pytest.approx(batch["advantages"][i])
                values = {k: v[i] for k, v in batch["rewards"].items()}
                total = sum({"letters": 1.0, "short": 0.25}[k] * v for k, v in values.items() if not math.isnan(v))
                assert record.breakdown is not None and record.breakdown.total == pytest.approx(total, abs=1e-6)
                tokens = reader.bodies.tokens(row.n)
                assert tokens is not None
                written = [t for t, ours in zip(tokens.token_ids, tokens.agent_mask, strict=True) if ours]
                assert tokenizer.decode(written, skip_special_tokens=True) == batch["completion"][i]


def test_the_numbers_of_the_training_are_charted(trained: Any) -> None:
    _, _, run, _ = trained
    with RunReader(run) as reader:
        names = reader.metrics.names()
        assert {"rewards/total/mean", "rewards/raw/letters", "rewards/weight/short", "train/loss"} <= set(names)
        latest = reader.metrics.latest()
        cut = [row.stop_reason == "length" for row in reader.rollouts.page(limit=99) if row.step == STEPS]
    assert latest["rewards/weight/short"] == 0.25
    assert sum(cut) / len(cut) == latest["completions/clipped_ratio"] > 0


@pytest.mark.parametrize("source", ["logs", "rewards", "parquet"])
def test_what_is_taken_where_generation_cannot_be_wrapped(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = trainer(tmp_path, *small(), log_completions=True)
    attached = hook.attach(made, run="fallen-back", runs_dir=tmp_path / "runs", source=source)
    assert attached.source == source
    assert hook.SOURCES[source] in capsys.readouterr().out, "it says at the start what is recorded"
    logs = keep_logs(made)
    made.train()
    with RunReader(tmp_path / "runs" / "fallen-back") as reader:
        found = reader.rollouts.page(limit=100)
        assert len(found) == 8 * STEPS and {r.step for r in found} == set(range(1, STEPS + 1))
        shown = [reader.bodies.trajectory(r.n) for r in found]
        said = sorted(t for batch in logs for t in batch["completion"])
        assert sorted(r.trajectory.steps[0].text for r in shown) == said
        raw = sorted(
            v.components["short"].raw or 0.0 for r in shown if r.breakdown for v in r.breakdown.steps if v.components
        )
        assert raw == pytest.approx(sorted(v for batch in logs for v in batch["rewards"]["short"]), abs=1e-6)
        assert all((r.advantage is None) == (source == "rewards") for r in shown)
        assert all((r.breakdown.total is None) == (source == "parquet") for r in shown if r.breakdown)
        assert reader.bodies.tokens(1) is None


def test_a_batch_of_the_logs_that_serves_two_steps_is_recorded_once(tmp_path: Path) -> None:
    made = trainer(tmp_path, *small(), num_iterations=2, max_steps=4)
    hook.attach(made, run="reused", runs_dir=tmp_path / "runs", source="logs")
    made.train()
    with RunReader(tmp_path / "runs" / "reused") as reader:
        assert [r.step for r in reader.rollouts.page(limit=100)] == [1] * 8 + [3] * 8


class _Killed(TrainerCallback):
    """Ends a training after a step, as an error would."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            raise KeyboardInterrupt


def positions(run: Path) -> dict[str, list[int]]:
    """The steps of the rollouts by split; all ids differ, and each group has one prompt."""
    with RunReader(run) as reader:
        rows = reader.rollouts.page(limit=1000)
        assert len({row.id for row in rows}) == len(rows)
        assert len({(row.group, row.prompt) for row in rows}) == len({row.group for row in rows}) == len(rows) / 4
        steps = {split: [r.step or 0 for r in rows if r.split == split] for split in ("train", "eval")}
        numbers = [step for step, _ in reader.metrics.points("train/loss")]
        assert numbers == sorted(set(steps["train"])), "each step once"
    return steps


@pytest.mark.parametrize("source", ["generation", "rewards"])
def test_evaluations_belong_to_their_step_and_fresh_and_resumed_trainings_to_their_runs(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2}
    options: Any = {"run": "mine", "runs_dir": tmp_path / "runs", "source": source}
    first = trainer(tmp_path, *small(), **more)
    killed = hook.attach(first, **options)
    first.add_callback(_Killed(3))
    with pytest.raises(KeyboardInterrupt):
        first.train()
    killed.recorder.close()
    mine = tmp_path / "runs" / "mine"
    assert positions(mine) == {"train": [1] * 8 + [2] * 8 + [3] * 8, "eval": [2] * 8}
    fresh = trainer(tmp_path, *small(), **more, max_steps=1)
    hook.attach(fresh, **options)
    fresh.train()
    assert positions(tmp_path / "runs" / "mine-2")["train"] == [1] * 8

    resumed = trainer(tmp_path, *small(), **more)
    hook.attach(resumed, **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))
    assert sorted(p.name for p in mine.parent.iterdir()) == ["mine", "mine-2"]
    found = positions(mine)
    assert (sorted(found["train"]), found["eval"]) == ([s for s in range(1, 5) for _ in range(8)], [2] * 8 + [4] * 8)
    info = look(mine)
    assert (info.status, info.step, info.total_steps) == ("finished", 4, 4)


def test_another_trainer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="is not a GRPOTrainer"):
        hook.attach(object())  # type: ignore[arg-type]


def drop_logs(made: Any, *names: str) -> None:
    """Make the trainer one that keeps less in `_logs`, as other versions and subclasses do."""
    generate = made._generate_and_score_completions

    def generate_without(inputs: Any) -> Any:
        batch = generate(inputs)
        for name in names:
            made._logs.pop(name, None)
        return batch

    made._generate_and_score_completions = generate_without
    log = made.log

    def log_without(logs: Any, *more: Any) -> None:
        made._logs |= {name: [] for name in names if name not in made._logs}
        log(logs, *more)

    made.log = log_without


def test_a_trainer_without_extra_columns_is_read_whole(tmp_path: Path) -> None:
    made = trainer(tmp_path, *small(), max_steps=1)
    drop_logs(made, "extra")
    attached = hook.attach(made, run="run", runs_dir=tmp_path / "runs")
    made.train()
    assert attached.source == "generation"
    with RunReader(tmp_path / "runs" / "run") as reader:
        assert reader.rollouts.total() == 8 and reader.bodies.tokens(1) is not None


def test_the_first_batch_proves_the_source_and_the_next_one_takes_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = trainer(tmp_path, *small(), max_steps=3)
    drop_logs(made, "advantages")
    attached = hook.attach(made, run="run", runs_dir=tmp_path / "runs")
    made.train()
    out = capsys.readouterr().out
    assert attached.source == "rewards" and "'generation'" in out and "'advantages'" in out
    assert hook.SOURCES["rewards"] in out
    with RunReader(tmp_path / "runs" / "run") as reader:
        assert {r.step for r in reader.rollouts.page(limit=100)} == {2, 3}, "all but the batch that proved nothing"


class Renamed(GRPOTrainer):
    """A trainer of another package, which generates with a method of its own."""

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        args: Any = self.args
        if self._step % (args.steps_per_generation or 1) == 0:
            self._kept = self._make_batch(generation_batch)
        self._step += 1
        return self._kept

    def _make_batch(self, inputs: Any) -> Any:
        return GRPOTrainer._generate_and_score_completions(self, inputs)


class WithoutHook(Renamed):
    """The same, where the method of TRL is gone."""

    _generate_and_score_completions: Any = None


@pytest.mark.parametrize("kind", [Renamed, WithoutHook])
def test_a_subclass_with_a_renamed_hook_falls_back_with_the_reason(
    kind: type, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = trainer(tmp_path, *small(), max_steps=2, gradient_accumulation_steps=1)
    made.__class__ = kind
    attached = hook.attach(made, run="run", runs_dir=tmp_path / "runs")
    made.train()
    out = capsys.readouterr().out
    assert attached.source == "logs" and hook.SOURCES["logs"] in out
    assert f"{kind.__name__} {'does not call' if kind is Renamed else 'has no'} {hook.GENERATE}" in out
    with RunReader(tmp_path / "runs" / "run") as reader:
        assert [r.step for r in reader.rollouts.page(limit=100)] == [1] * 8 + [2] * 8


def test_a_training_of_which_nothing_can_be_read_ends_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = trainer(tmp_path, *small(), max_steps=1)
    drop_logs(made, "advantages")
    made.reward_funcs = tuple(made.reward_funcs)
    attached = hook.attach(made, run="run", runs_dir=tmp_path / "runs")
    made.train()
    assert attached.source == ""
    found = look(tmp_path / "runs" / "run")
    assert found.error and found.error.startswith("0 rollouts recorded: TRL") and found.error in capsys.readouterr().out


def test_functions_of_one_name_are_told_apart(tmp_path: Path) -> None:
    def scored(value: float) -> Any:
        def score(completions: list[Any], **columns: Any) -> list[float]:
            return [value] * len(completions)

        return score

    made = trainer(tmp_path, *small(), max_steps=1, reward_funcs=[scored(1.0), scored(2.0)])
    hook.attach(made, run="run", runs_dir=tmp_path / "runs")
    made.train()
    with RunReader(tmp_path / "runs" / "run") as reader:
        breakdown = reader.bodies.trajectory(1).breakdown
        assert breakdown is not None and breakdown.total == 1.0 * 1.0 + 0.25 * 2.0
        assert {name: v.raw for name, v in breakdown.steps[0].components.items()} == {"score": 1.0, "score-2": 2.0}
        assert reader.metrics.latest()["rewards/raw/score-2"] == 2.0


def test_a_training_without_steps_is_no_fault_of_trl(tmp_path: Path) -> None:
    made = trainer(tmp_path, *small())
    made.train_dataset = made.train_dataset.select([0])  # fewer than a batch
    attached = hook.attach(made, run="run", runs_dir=tmp_path / "runs")
    made.train()
    assert attached.source == "generation"
    assert look(tmp_path / "runs" / "run").error == "0 rollouts recorded: the trainer generated none"


def test_rewards_that_cannot_be_read_give_way_to_the_next_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = trainer(tmp_path, *small(), max_steps=2, log_completions=True)
    attached = hook.attach(made, run="run", runs_dir=tmp_path / "runs", source="rewards")
    monkeypatch.setattr(attached, "position", lambda: 1 // 0)
    made.train()
    out = capsys.readouterr().out
    assert attached.source == "parquet" and hook.SOURCES["parquet"] in out and "'rewards'" in out
    with RunReader(tmp_path / "runs" / "run") as reader:
        assert {r.step for r in reader.rollouts.page(limit=100)} <= {1, 2}
        assert reader.rollouts.total() in (8, 16)


def test_files_of_completions_that_cannot_be_read_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = trainer(tmp_path, *small(), max_steps=2)
    made.args.log_completions = True
    hook.attach(made, run="run", runs_dir=tmp_path / "runs", source="parquet")
    log = made.log

    def log_torn(*given: Any) -> None:
        folder = Path(made.args.output_dir, "completions")
        folder.mkdir(exist_ok=True)
        (folder / f"completions_{made.state.global_step:05d}.parquet").write_bytes(b"PAR1 torn")
        log(*given)

    made.log = log_torn
    made.train()
    error = look(tmp_path / "runs" / "run").error or ""
    assert error.startswith("0 rollouts recorded: TRL") and error in capsys.readouterr().out


def test_numbers_that_cannot_be_read_stop_no_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    made = trainer(tmp_path, *small(), max_steps=1)
    attached = hook.attach(made, run="run", runs_dir=tmp_path / "runs")
    monkeypatch.setattr(attached, "weights", lambda: 1 // 0)
    made.train()
    assert made.state.global_step == 1 and "training continues" in caplog.text
