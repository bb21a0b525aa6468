"""Hooks of other trainers, on stand-ins with the signatures of the real classes, and the loop of the documents."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import grpo_tui.verifiers
import grpo_tui.verl
from grpo_tui import Recorder
from grpo_tui.engine.runs.control.status import look
from grpo_tui.engine.runs.read.reader import RunReader

ROOT = Path(__file__).parents[2]
PEERS = ROOT / "tests" / "engine" / "imports" / "peer_dumps"


class Tracking:
    """verl's logger."""

    def __init__(self) -> None:
        self.logged: list[dict[str, Any]] = []

    def log(self, data: dict[str, Any], step: int, backend: Any = None) -> None:
        self.logged.append({**data, "step": step})


class PPOTrainerSync:
    """The parts of verl 0.9's `PPOTrainer` that are touched, with their signatures."""

    def __init__(self, rows: list[dict[str, Any]], folder: Path, fails: bool = False) -> None:
        self.rows, self.fails = rows, fails
        settings = {"rollout_data_dir": str(folder / "train"), "validation_data_dir": str(folder / "val")}
        settings |= {"experiment_name": "verl-run", "project_name": "visual"}
        model = SimpleNamespace(path="Qwen3-0.6B")
        self.config = SimpleNamespace(trainer=settings, actor_rollout_ref=SimpleNamespace(model=model))
        self.global_steps, self.total_training_steps = 1, 3
        self.dumped: list[str] = []

    def fit(self) -> str:
        self.logger: Any = Tracking()
        for self.global_steps in (1, 2, 3):
            rows = [r for r in self.rows if r["step"] == self.global_steps]
            extra = {"uid": [r["uid"] for r in rows], "too_short": [1]}
            lists = ([r[k] for r in rows] for k in ("input", "output", "gts", "score"))
            self._dump_generations(
                *lists, reward_extra_infos_dict=extra, dump_path=self.config.trainer["rollout_data_dir"]
            )
            self.logger.log(data={"critic/score/mean": 0.5, "actor/pg_loss": 0.1, "note": "x"}, step=self.global_steps)
        if self.fails:
            raise RuntimeError("out of memory")
        return "done"

    def _dump_generations(self, inputs, outputs, gts, scores, reward_extra_infos_dict, dump_path):
        self.dumped.append(dump_path)


def lines(folder: str) -> list[dict[str, Any]]:
    return [json.loads(t) for p in sorted(PEERS.glob(f"{folder}/*.jsonl")) for t in p.open()]


def test_verl_is_recorded_by_subclasses_in_its_registry(tmp_path: Path) -> None:
    registry: dict[str, type] = {"sync": PPOTrainerSync}
    grpo_tui.verl.attach(registry, runs_dir=tmp_path)
    grpo_tui.verl.attach(registry)
    assert registry["sync"].__mro__.count(grpo_tui.verl.Recorded) == 1 and registry["sync"].__name__ == "PPOTrainerSync"
    rows = lines("verl/rollout")
    trainer = registry["sync"](rows, tmp_path)
    assert trainer.fit() == "done"
    assert len(trainer.dumped) == 3 and len(trainer.logger.inner.logged) == 3, "verl's own goes on as before"
    info = look(tmp_path / "verl-run")
    assert (info.status, info.environment, info.model, info.total_steps) == ("finished", "visual", "Qwen3-0.6B", 3)
    with RunReader(tmp_path / "verl-run") as reader:
        found = reader.rollouts.page(limit=100)
        assert len(found) == len(rows) == 24
        known = sorted(r.reward for r in found if r.reward is not None)
        assert known == sorted(r["score"] for r in rows if isinstance(r["score"], float) and r["score"] == r["score"])
        assert len({r.group for r in found}) == 6 and {r.step for r in found} == {1, 2, 3}
        assert reader.metrics.latest()["rewards/total/mean"] == 0.5


def test_a_training_of_verl_that_fails_is_a_run_that_crashed(tmp_path: Path) -> None:
    registry: dict[str, type] = {"sync": PPOTrainerSync}
    grpo_tui.verl.attach(registry, runs_dir=tmp_path)
    with pytest.raises(RuntimeError, match="out of memory"):
        registry["sync"](lines("verl/rollout"), tmp_path, fails=True).fit()
    assert look(tmp_path / "verl-run").status == "crashed"


class Unset(PPOTrainerSync):
    """A trainer without `rollout_data_dir`: verl does not call `_dump_generations`."""

    def __init__(self, rows: list[dict[str, Any]], folder: Path) -> None:
        super().__init__([], folder)
        self.config.trainer |= {"rollout_data_dir": None, "validation_data_dir": None}

    def fit(self) -> str:
        return "done"


class Renamed:
    """A trainer of another version, whose hook has another name."""

    def __init__(self, rows: list[dict[str, Any]], folder: Path) -> None:
        self.config = PPOTrainerSync(rows, folder).config

    def fit(self) -> str:
        return "done"


class Torn(PPOTrainerSync):
    """A trainer of another version, whose hook gets columns of different lengths."""

    def fit(self) -> str:
        self._dump_generations(["a", "b"], ["c"], [None], [1.0], {}, str(self.config.trainer["rollout_data_dir"]))
        return "done"


@pytest.mark.parametrize(
    ("trainer", "reason"), [(Unset, "rollout_data_dir is not set"), (Renamed, "_dump_generations"), (Torn, "zip()")]
)
def test_verl_without_rollouts_ends_with_the_reason(
    trainer: type, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    registry = {"sync": trainer}
    grpo_tui.verl.attach(registry, runs_dir=tmp_path, run="empty")
    assert registry["sync"](lines("verl/rollout"), tmp_path).fit() == "done"
    out = capsys.readouterr().out
    error = look(tmp_path / "empty").error or ""
    assert error.startswith("0 rollouts recorded: ") and reason in error and error in out
    assert ("metrics only" in out) == (trainer is not Torn)


def test_verl_counts_a_first_batch_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Late(Torn):
        def fit(self) -> str:
            super().fit()
            self._dump_generations(["a"], ["b"], [None], [1.0], {}, str(self.config.trainer["rollout_data_dir"]))
            return "done"

    registry: dict[str, type] = {"sync": Late}
    grpo_tui.verl.attach(registry, runs_dir=tmp_path, run="partly")
    assert registry["sync"]([], tmp_path).fit() == "done"
    assert "1 rollout recorded, 1 was not: ValueError: zip()" in capsys.readouterr().out
    assert look(tmp_path / "partly").status == "finished"


class Episode:
    """verifiers' `Episode`: a pydantic model."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data

    def model_dump_json(self, *, exclude_none: bool = False) -> str:
        return json.dumps(self.data)


def test_verifiers_episodes_are_recorded_as_they_end(tmp_path: Path) -> None:
    episodes = [json.loads(t) for p in sorted(PEERS.glob("verifiers-v1/**/*.jsonl")) for t in p.open()]
    after: list[Any] = []

    async def then(episode: Any) -> None:
        after.append(episode)

    async def run_all(hook: Any) -> None:
        await asyncio.gather(*(hook(Episode(e)) for e in episodes), hook(object()))

    with Recorder("eval", runs_dir=tmp_path) as record:
        asyncio.run(run_all(grpo_tui.verifiers.on_complete(record, then, step=7)))
    assert len(after) == len(episodes) + 1, "the hook that was there before still is"
    with RunReader(tmp_path / "eval") as reader:
        found = {r.id: r for r in reader.rollouts.page(limit=100)}
        assert found.keys() == {t["id"] for e in episodes for t in e["traces"]}
        assert {r.step for r in found.values()} == {7}
        assert any(r.reward is not None for r in found.values())


@pytest.mark.parametrize(
    ("given", "reason"), [([object()], "model_dump_json"), ([], "no episode"), (["empty"], "no traces")]
)
def test_an_evaluation_without_rollouts_ends_with_the_reason(given: list[Any], reason: str, tmp_path: Path) -> None:
    with Recorder("eval", runs_dir=tmp_path) as record:
        hook = grpo_tui.verifiers.on_complete(record)

        async def run_all() -> None:
            for episode in given:
                await hook(Episode({"traces": []}) if episode == "empty" else episode)

        asyncio.run(run_all())
    error = look(tmp_path / "eval").error or ""
    assert error.startswith("0 rollouts recorded: ") and reason in error


def test_the_loop_of_the_documents_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs" / "recording.md").read_text()
    code = next(c for c in re.findall(r"```python\n(.*?)```", text, re.S) if "train_one_step" in c)
    monkeypatch.setenv("GRPO_TUI_HOME", str(tmp_path))

    def train_one_step(step: int) -> Any:
        return [("2+2?", str(i), float(i == 4), float(i == 4) - 0.25) for i in range(4)], 0.1

    assert len(code.splitlines()) <= 20
    exec(compile(code, "docs/recording.md", "exec"), {"train_one_step": train_one_step})
    run = next(tmp_path.rglob("run.json")).parent
    with RunReader(run) as reader:
        assert reader.rollouts.total() == 400 and reader.metrics.latest()["train/loss"] == 0.1
