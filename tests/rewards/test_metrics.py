"""Metrics under the requirement's names, and in wandb's offline file with their values."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import wandb

from grpo_tui.configs.sections.base import LoggingConfig
from grpo_tui.configs.sections.rewards import RewardsConfig
from grpo_tui.engine.record.wandb_sink import ACTION_TABLE, WandbSink
from grpo_tui.rewards.metrics import action_distribution, flat
from grpo_tui.rewards.orchestrator import RewardOrchestrator
from tests.repeated import lighten_wandb

from .episodes import good, step, trajectory
from .wandb_file import history


def test_the_action_distribution_is_bounded_and_adds_up():
    batch = [good(), trajectory(step(0, "MADE_UP_1"), step(1, "MADE_UP_2"), step(2, None))]
    shares = action_distribution(batch)
    assert sum(shares.values()) == pytest.approx(1.0)
    assert shares["(unknown tool)"] == pytest.approx(2 / 6)
    assert shares["(unparsable)"] == pytest.approx(1 / 6)
    assert shares["TRACK_OBJECT"] == 0.0  # declared and not called
    assert action_distribution([]) == {}
    assert action_distribution([trajectory(step(0, "GO"), tools=())]) == {"GO": 1.0}


def test_flat_names():
    assert flat({"a": 1, "d": {"X": 0.5}}) == {"a": 1.0, "d/X": 0.5}


def offline(folder: Path, **more) -> WandbSink:
    return WandbSink(LoggingConfig(wandb="offline"), folder, run_id="ab12", table_every=2, **more)


def test_the_offline_file_holds_the_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    lighten_wandb()
    orchestrator = RewardOrchestrator(config=RewardsConfig())
    problems: list[str] = []
    sink = offline(tmp_path, on_problem=problems.append)
    logged = {}
    for number in range(1, 6):
        batch = [good("a"), trajectory(*(step(i, "TRACK_OBJECT", {"mask": 1}) for i in range(number)), id="b")]
        embeddings = [torch.randn(len(t.steps), 8) for t in batch]
        result = orchestrator.calculate_total_reward(batch, [True, False], embeddings=embeddings)
        logged[number] = {**result.metrics, "grpo/filtering_rate": 0.25, "kl/mean": 0.01 * number}
        sink.log(number, logged[number])
    sink.close()
    assert problems == []
    wandb.teardown()  # as at the end of the process: its own process has then written everything

    [file] = tmp_path.glob("wandb/offline-run-*/run-ab12.wandb")
    read = history(file)
    for number, metrics in logged.items():
        for name, value in metrics.items():
            if isinstance(value, dict):
                for action, frequency in value.items():
                    assert read[number][f"{name}.{action}"] == frequency
            else:
                assert read[number][name] == value, name
        for component in ("task", "curiosity", "coherence", "penalty"):
            for kind in ("raw", "normalized", "running_mean", "running_std"):
                assert f"rewards/{kind}/{component}" in read[number]

    tables = [json.loads(f.read_text()) for f in file.parent.glob(f"files/media/table/{ACTION_TABLE}_*.table.json")]
    assert all(t["columns"] == ["step", "action", "frequency"] for t in tables)
    rows = sorted(tuple(row) for t in tables for row in t["data"])
    expected = [(n, a, f) for n, m in logged.items() for a, f in m["behavior/action_distribution"].items()]
    assert rows == sorted(expected)  # every step, the last one too, and each once


def test_off_does_not_import_wandb(tmp_path: Path):
    code = (
        "import sys; from pathlib import Path; from grpo_tui.configs.sections.base import LoggingConfig;"
        "from grpo_tui.engine.record.wandb_sink import WandbSink;"
        f"s = WandbSink(LoggingConfig(), Path({str(tmp_path)!r}), run_id='x'); s.log(1, {{'a': 1.0}}); s.close();"
        "print('wandb' in sys.modules, s._run is not None)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["False", "False"]
    assert list(tmp_path.iterdir()) == []


def test_online_without_a_key_says_so_once_and_training_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    problems: list[str] = []
    sink = WandbSink(LoggingConfig(wandb="online"), tmp_path, run_id="x", on_problem=problems.append)
    sink.log(1, {"a": 1.0})
    sink.close()
    assert sink._run is None
    assert len(problems) == 1
    assert problems[0].startswith("wandb could not be started and is off for the rest of this run: ")


def test_a_failure_while_logging_is_said_once(tmp_path: Path):
    problems: list[str] = []
    sink = offline(tmp_path, on_problem=problems.append)
    sink.log(1, {"fine": math.nan})
    sink.log(2, cast(Any, {"bad": object()}))
    sink.log(3, {"a": 1.0})
    sink.close()
    assert len(problems) == 1
    assert problems[0].startswith("wandb stopped at step 2 ")
