"""Each field of TRL's configuration has one place: passed, ours, or refused."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path

import pytest
from trl.trainer.grpo_config import GRPOConfig

from docs.from_grpoconfig import page
from grpo_tui.configs.errors import ConfigError
from grpo_tui.configs.expectations import walk
from grpo_tui.configs.loading import load_config
from grpo_tui.configs.schema import RunConfig
from grpo_tui.configs.trl_fields import OURS, PASSED, REFUSED, installed_fields
from grpo_tui.engine.training import TrainingError
from grpo_tui.engine.training.run import trl_arguments

ROOT = Path(__file__).resolve().parents[2]


def problem(*settings: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(None, settings)
    return str(caught.value)


def test_every_field_of_the_installed_trl_has_one_place():
    names = {f.name for f in fields(GRPOConfig) if f.init}
    assert names == installed_fields()
    assert not names - OURS.keys() - PASSED.keys() - REFUSED.keys()
    assert len(OURS.keys() | PASSED.keys() | REFUSED.keys()) == len(OURS) + len(PASSED) + len(REFUSED)


def test_our_keys_exist():
    known = {".".join(path) for path, _ in walk(RunConfig)}
    named = {key for text in OURS.values() for key in re.findall(r"\b[a-z_]+(?:\.[a-z_]+)+", text)}
    assert named - known - {"training.trl.generation_batch_size", "training.trl.warmup_steps"} == set()


def test_the_page_lists_them():
    pinned = (ROOT / "constraints.txt").read_text()
    if any(f"{name}=={version(name)}\n" not in pinned for name in ("trl", "transformers")):
        pytest.skip("the page is about the versions of constraints.txt")
    assert (ROOT / "docs" / "from-grpoconfig.md").read_text() == page()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("training.trl.delt=1.5", "has no such field; nearest: delta"),
        ("training.trl.learning_rates=1", "has no such field; nearest: training.learning_rate"),
        ("training.trl.learning_rate=1", "training.learning_rate"),
        ("training.trl.fsdp=full_shard", "--num-processes"),
        ("training.trl.neftune_noise_alpha=5", "would differ from the one that acted"),
        ("training.trl.num_train_epochs=2", "training.max_steps: null"),
        ("training.trl.num_iterations=0", "training.trl.num_iterations: 0 is not a number above 0"),
        ("training.trl.sync_ref_model=true", "model.lora: null"),
        ("training.trl.generation_batch_size=100", "a multiple of 128"),
        ("training.epsilon=0.1", "write it as training.trl.epsilon"),
        ("sft.lr_scheduler=cosine", "lr_scheduler_type, in training.trl or sft.trl"),
        ("sft.weight_decay=0.1", "write it as sft.trl.weight_decay"),
        ("sft.trl.packing=true", "fields of sft.trl: lr_scheduler_type"),
        ("model.lora.peft.modules_to_save=[lm_head]", "fields: use_rslora, use_dora"),
        ("model.lora.peft.init_lora_weights=pissa", "gaussian"),
    ],
)
def test_a_field_that_cannot_be_passed_is_refused_with_its_place(setting: str, message: str):
    assert message in problem(setting)


@pytest.mark.parametrize(
    ("passed", "message"),
    [
        ({"delta": "a"}, "training.trl.delta: 'a' is not allowed"),
        ({"num_iterations": 1.5}, "training.trl.num_iterations: 1.5 is not allowed"),
        ({"lr_scheduler_type": "cosin"}, "cosin"),
        ({"no_such": 1}, "no_such"),
    ],
)
def test_a_value_that_trl_does_not_take_is_one_sentence(tmp_path: Path, passed: dict, message: str):
    with pytest.raises(TrainingError, match=re.escape(message)) as caught:
        trl_arguments(GRPOConfig, "training.trl", passed, output_dir=str(tmp_path), use_cpu=True, bf16=False)
    assert "\n" not in str(caught.value)


def test_epochs_that_are_no_number_are_refused():
    settings = ["training.max_steps=null", "training.trl.num_train_epochs=two"]
    with pytest.raises(ConfigError, match=r"num_train_epochs: 'two' is not a number above 0"):
        load_config(None, settings)


def test_the_check_reads_trl_without_loading_torch():
    code = (
        "import sys; from grpo_tui.configs.loading import load_config; "
        "load_config(None, ['training.trl.delta=1.5']); print([m for m in ('torch', 'trl') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_epochs_are_passes_over_the_data_with_all_their_updates():
    from grpo_tui.configs.model_defaults import steps_of

    settings = ["training.max_steps=null", "training.prompts_per_step=4", "training.trl.num_train_epochs=1.5"]
    assert steps_of(load_config(None, settings).training, 100) == 38
    assert steps_of(load_config(None, [*settings, "training.trl.num_iterations=2"]).training, 100) == 75


def test_the_schedule_has_a_short_name_on_the_command_line():
    assert load_config(None, ["training.lr_scheduler=constant"]).training.trl == {"lr_scheduler_type": "constant"}
