"""A TRL that lacks a hook is refused by name before anything is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import Trainer
from trl.trainer.grpo_trainer import GRPOTrainer

from grpo_tui.engine.training import TrainingError, trl_seam
from grpo_tui.engine.training.env_trainer import GRPOEnvTrainer
from grpo_tui.engine.training.resumable import HOOKS, FiniteUpdates, Resumable, ResumableTrainer
from grpo_tui.engine.training.trl_seam import METHODS

from .parts import make_trainer, playback_rows, policy


def make(folder: Path) -> GRPOEnvTrainer:
    return make_trainer(folder, playback_rows(2), model=policy(lora=True), max_steps=1)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_that_takes_other_arguments(tmp_path: Path, monkeypatch: Any, name: str):
    trl_seam.check_methods()
    with monkeypatch.context() as changed:
        changed.setattr(GRPOTrainer, name, lambda self: None)
        with pytest.raises(TrainingError, match=rf"has no GRPOTrainer\.{name}.*pip install 'trl>=1\.14"):
            make(tmp_path)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_that_is_missing(monkeypatch: Any, name: str):
    for owner in GRPOTrainer.__mro__:
        if name in vars(owner):
            monkeypatch.delattr(owner, name)
    with pytest.raises(TrainingError, match=rf"has no GRPOTrainer\.{name}"):
        trl_seam.check_methods()


@pytest.mark.parametrize("name", HOOKS)
def test_a_transformers_without_a_hook(monkeypatch: Any, name: str):
    with monkeypatch.context() as changed:
        changed.delattr(Trainer, name)
        with pytest.raises(TrainingError, match=rf"has no Trainer\.{name}.* pip install 'transformers>="):
            ResumableTrainer()
    if HOOKS[name] is not None:
        monkeypatch.setattr(Trainer, name, lambda self: None)
        with pytest.raises(TrainingError, match=rf"has no Trainer\.{name}"):
            ResumableTrainer()


def test_a_field_that_the_optimiser_refuses_is_named(tmp_path: Path):
    trainer = make_trainer(tmp_path, playback_rows(2), model=policy(lora=True), max_steps=1)
    trainer.args.optim, trainer.args.adam_beta1 = "adamw_torch", 2.0
    with pytest.raises(TrainingError, match=r"training\.trl, sft\.trl or model\.lora cannot be used: Invalid beta"):
        trainer.create_optimizer()


def test_a_method_may_take_its_arguments_as_a_whole(monkeypatch: Any):
    """As TRL 1.14 has it."""
    name = "_get_per_token_logps_and_entropies"
    monkeypatch.setattr(GRPOTrainer, name, lambda self, model, *args, batch_size=None, **kwargs: None)
    trl_seam.check_methods()


def test_an_attribute_that_is_missing(tmp_path: Path, monkeypatch: Any):
    made = GRPOTrainer.__init__

    def without(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        del self._buffered_inputs

    monkeypatch.setattr(GRPOTrainer, "__init__", without)
    with pytest.raises(TrainingError, match=r"has no GRPOTrainer\._buffered_inputs"):
        make(tmp_path)


def test_the_list_of_hooks_names_every_private_method_that_is_replaced():
    own = {name for name in vars(GRPOEnvTrainer) if name.startswith("_") and not name.startswith("__")}
    replaced = {name for name in own if callable(getattr(GRPOTrainer, name, None))}
    assert replaced - {"_send_telemetry"} == {name for name in METHODS if name.startswith("_")}
    own = {name for kind in (FiniteUpdates, Resumable) for name in vars(kind) if not name.startswith("__")}
    assert {name for name in own if callable(getattr(Trainer, name, None))} | {"_save_scaler", "save_model"} == {*HOOKS}
