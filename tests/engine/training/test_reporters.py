"""Trackers of transformers get every recorded metric, several at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_tui.engine.record.reporters import ReportError
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.training.__main__ import run
from grpo_tui.engine.training.rft import run_rft
from tests.repeated import lighten_wandb

from .runs import make_run


def reporting(folder: Path, names: list[str], **logging: Any) -> Path:
    run_dir = make_run(folder / "run", folder / "base", max_steps=2, eval_every=1)
    config = yaml.safe_load((run_dir / "config.yaml").read_text())
    config["logging"] = {"report_to": names, **logging}
    (run_dir / "config.yaml").write_text(yaml.safe_dump(config))
    return run_dir


def test_tensorboard_and_wandb_get_the_metrics_of_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("tensorboard")
    pytest.importorskip("wandb")
    lighten_wandb()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-not-found]

    monkeypatch.delenv("TENSORBOARD_LOGGING_DIR", raising=False)
    run_dir = reporting(tmp_path, ["tensorboard", "wandb"], wandb="offline")
    assert run(run_dir) == 0
    events = EventAccumulator(str(run_dir / "tensorboard"))
    events.Reload()
    assert list(run_dir.glob("wandb/offline-run-*/run-*.wandb"))
    with RunReader(run_dir) as reader:
        for name, shown in (("train/loss", "train/loss"), ("success/eval_greedy", "train/success/eval_greedy")):
            points = [(e.step, pytest.approx(e.value)) for e in events.Scalars(shown)]
            assert reader.metrics.points(name) == points, name


@pytest.mark.parametrize(("name", "message"), [("tensorbord", "is not supported"), ("flyte", "flyte cannot be used")])
def test_a_tracker_that_is_unknown_or_missing_is_one_sentence(tmp_path: Path, name: str, message: str):
    from grpo_tui.engine.launch.settings import read_config
    from grpo_tui.engine.runs.write.writer import NullWriter

    with pytest.raises(ReportError, match=message) as caught:
        run_rft(read_config(reporting(tmp_path, [name])), tmp_path / "run", NullWriter())
    assert str(caught.value).startswith("logging.report_to: ") and "\n" not in str(caught.value)
