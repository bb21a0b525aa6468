"""`python -m grpo_tui.engine.training.merge RUN_DIR ADAPTERS FOLDER`: merge adapters into their base model."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import torch
from peft import PeftModel

from ..evaluation.card import model_card
from ..launch.outcome import told_in_one_sentence
from ..launch.settings import read_config
from ..policy.models import load_policy, load_vision
from ..policy.sources import load_known
from ..policy.unwrap import base_of
from .checkpoints import replacing


def merge(run_dir: Path, adapters: str, folder: Path) -> None:
    """Write base model and adapters as one model that plain `from_pretrained` loads.

    The sum is computed in float32 and rounded once, to the format of the base model's files.
    """
    config = read_config(run_dir).model.model_copy(
        update={"weights": "float32", "compute": "float32", "quantization": None, "device": "cpu"}
    )
    model, tokenizer = load_policy(config, adapters=adapters, trainable=False)
    assert isinstance(model, PeftModel)
    vision = load_vision(config, model, tokenizer)
    dtype = load_known(config).dtype or torch.float32
    merged = base_of(model.merge_and_unload()).to(dtype)  # type: ignore[call-overload]
    merged.config.dtype = dtype
    with replacing(folder) as temporary:
        merged.save_pretrained(str(temporary))
        (tokenizer if vision is None else vision.processor).save_pretrained(str(temporary))
        (temporary / "README.md").write_text(model_card(run_dir, Path(adapters), merged=True), encoding="utf-8")


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    with told_in_one_sentence():
        merge(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
