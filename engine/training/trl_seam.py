"""All that training takes from inside TRL: methods of `GRPOTrainer` that `GRPOEnvTrainer` replaces, and attributes.

| hook | for |
|---|---|
| `_generate_and_score_completions` | rollouts of environments instead of TRL's completions |
| `_prepare_inputs` | micro-batches that keep the order of their rows |
| `_get_per_token_logps_and_entropies` | log-probs of the packed forward pass |
| `compute_loss`, `training_step`, `get_batch_samples` | phases, checks, and the rollouts of later steps |
"""

from __future__ import annotations

import inspect

import trl
from trl.trainer.grpo_trainer import GRPOTrainer

from ...configs.errors import GrpoTuiError

TRIED = "1.14 to 1.16"
"""Versions of TRL that `make test-versions` trains with."""
METHODS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "_generate_and_score_completions": (("inputs",), ()),
    "_prepare_inputs": (("generation_batch",), ()),
    "_get_per_token_logps_and_entropies": (
        ("model", "input_ids", "attention_mask", "logits_to_keep"),
        ("batch_size", "compute_entropy"),
    ),
    "compute_loss": (("model", "inputs", "return_outputs", "num_items_in_batch"), ()),
    "training_step": (("model", "inputs", "num_items_in_batch"), ()),
    "get_batch_samples": (("epoch_iterator", "num_batches", "device"), ()),
}
"""Each with the arguments of its calls: by position, and by name."""
ATTRIBUTES = (
    *("_buffered_inputs", "_entropy_bonus_enabled", "_last_world_entropy", "_logs", "_metrics", "_step", "_tokenizer"),
    *("aux_loss_enabled", "entropy_coef", "epsilon_high", "epsilon_low", "importance_sampling_level", "loss_type"),
    *("num_iterations", "temperature", "use_adaptive_entropy"),
)


class UnknownTrlError(GrpoTuiError, RuntimeError):
    """This TRL lacks a hook that training needs."""


def check_methods() -> None:
    """Raise UnknownTrlError unless every method of `METHODS` exists and takes its arguments."""
    for name, (positions, names) in METHODS.items():
        try:
            inspect.signature(getattr(GRPOTrainer, name)).bind(None, *positions, **dict.fromkeys(names))
        except (AttributeError, TypeError) as error:
            raise UnknownTrlError(_message(f"{name}({', '.join((*positions, *names))})")) from error


def check_attributes(trainer: GRPOTrainer) -> None:
    """Raise UnknownTrlError unless a trainer that was made has every attribute of `ATTRIBUTES`."""
    for name in ATTRIBUTES:
        if not hasattr(trainer, name):
            raise UnknownTrlError(_message(name))


def _message(hook: str) -> str:
    return (
        f"TRL {trl.__version__} has no GRPOTrainer.{hook}, which training needs; install one that was tried, "
        f"{TRIED}: pip install 'trl>=1.14,<1.17'"
    )
