"""`model.lora: null`: all weights are trained, with checkpoints, resume, reference and record as with adapters."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from grpo_tui.configs.errors import ConfigError
from grpo_tui.configs.loading import load_config
from grpo_tui.configs.sections.rewards import DiagnosisConfig
from grpo_tui.engine.runs.health.checkpoints import checkpoint_folder
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.training.__main__ import run
from grpo_tui.tui.cli.main import run as grpo_tui

from .runs import make_run, recorded_steps


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("full")
    folder = make_run(place / "runs" / "run", place / "base", max_steps=4, learning_rate=1e-3, beta=0.05)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["model"]["lora"] = None
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    assert run(folder) == 0
    return folder


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def test_all_weights_are_trained_and_load_plainly(whole):
    before = weights(whole.parents[1] / "base")
    after = weights(whole / "adapters")
    assert after.keys() == before.keys()
    assert all(not torch.equal(after[name], before[name]) for name in before)
    model = AutoModelForCausalLM.from_pretrained(whole / "adapters")
    assert sum(p.numel() for p in model.parameters()) > 0
    saved = [*(whole / "adapters").iterdir(), *checkpoint_folder(whole).rglob("*.safetensors")]
    assert {path.stat().st_mode for path in saved} == {(whole / "config.yaml").stat().st_mode}, "others may load them"


def test_the_record_states_how_far_the_weights_moved(whole):
    reader = RunReader(whole)
    moved = [value for _, value in reader.metrics.points("train/movement")]
    reader.close()
    assert len(moved) == 4
    assert all(DiagnosisConfig().movement < value < 2 for value in moved)


def test_a_resumed_run_is_the_run_that_was_not_stopped(whole, tmp_path):
    folder = tmp_path / "resumed"
    shutil.copytree(whole, folder)
    text = (folder / "config.yaml").read_text().replace(str(whole / "adapters"), str(folder / "adapters"))
    (folder / "config.yaml").write_text(text)
    shutil.rmtree(folder / "adapters")  # a copy of what the link named
    shutil.rmtree(checkpoint_folder(folder) / "checkpoint-4")
    assert run(folder, resume=True) == 0
    assert recorded_steps(folder) == [1, 2, 3, 4]
    ours, expected = weights(folder / "adapters"), weights(whole / "adapters")
    assert all(torch.equal(ours[name], expected[name]) for name in expected)


def test_the_reference_stays_what_the_run_began_with(whole, capsys):
    assert grpo_tui(["check", "run", "--recompute", "--runs-dir", str(whole.parent)]) == 0
    assert ", 0 wrong" in capsys.readouterr().out
    assert grpo_tui(["runs", "--runs-dir", str(whole.parent)]) == 0


def test_adapters_are_merged_before_all_weights_are_trained():
    from grpo_tui.engine.policy.models import load_policy

    model, _ = load_policy(load_config(None, ["model.lora=null"]).model, adapters="builtin:tiny-sft")
    with_adapters, _ = load_policy(load_config(None).model, adapters="builtin:tiny-sft", trainable=False)
    assert all(p.requires_grad for p in model.parameters())
    ids = torch.arange(5, device=model.device)[None]
    with torch.no_grad():
        assert torch.allclose(model.eval()(ids).logits, with_adapters(ids).logits, atol=1e-4)


def test_serving_while_learning_needs_adapters():
    with pytest.raises(ConfigError, match="null means no adapters"):
        load_config(None, ["mode=online", "model.lora=null"])
