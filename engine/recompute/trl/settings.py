"""The `GRPOConfig` settings that affect the arithmetic, as the trainer declares them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

FORMULAS = (1, 16)
"""The TRL version that the formulas follow."""


@dataclass(frozen=True)
class Settings:
    """Settings with TRL's names and defaults, and facts about the trainer.

    trl: the TRL version. replaced: TRL methods that a subclass overrides. scaled: whether a library scales the loss
    before the backward pass.
    """

    loss_type: str = "dapo"
    beta: float = 0.0
    epsilon: float = 0.2
    epsilon_high: float | None = None
    delta: float | None = None
    importance_sampling_level: str = "token"
    scale_rewards: str = "group"
    multi_objective_aggregation: str = "sum_then_normalize"
    num_generations: int = 8
    gradient_accumulation_steps: int = 1
    steps_per_generation: int = 1
    num_iterations: int = 1
    max_completion_length: int = 256
    mask_truncated_completions: bool = False
    top_entropy_quantile: float = 1.0
    use_bias_correction_kl: bool = False
    sapo_temperature_pos: float = 1.0
    sapo_temperature_neg: float = 1.05
    vespo_k_pos: float = 2.0
    vespo_k_neg: float = 3.0
    vespo_lambda_pos: float = 3.0
    vespo_lambda_neg: float = 2.0
    off_policy_mask_threshold: float | None = None
    entropy_coef: float = 0.0
    use_adaptive_entropy: bool = False
    use_vllm: bool = False
    vllm_importance_sampling_correction: bool = False
    sync_ref_model: bool = False
    bf16: bool = False
    fp16: bool = False
    trl: str = ""
    trainer: str = ""
    replaced: tuple[str, ...] = ()
    processes: int = 1
    dtype: str = ""
    dropout: bool = False
    environments: bool = False
    scaled: bool = False
    aux_loss: bool = False

    @property
    def version(self) -> tuple[int, ...]:
        """The TRL version, or the version of the formulas if it is unknown."""
        return tuple(int(part) for part in self.trl.split(".")[:2] if part.isdecimal()) or FORMULAS

    @property
    def low(self) -> float:
        return 1 - self.epsilon

    @property
    def high(self) -> float:
        """The upper bound of a ratio. For cispo it is `epsilon_high` itself."""
        above = self.epsilon if self.epsilon_high is None else self.epsilon_high
        return above if self.loss_type == "cispo" else 1 + above

    @property
    def by_sequence(self) -> bool:
        return self.importance_sampling_level == "sequence"

    @property
    def corrected(self) -> bool:
        """Whether the loss corrects for the vLLM sampler."""
        return self.use_vllm and self.vllm_importance_sampling_correction

    @property
    def keeps_old(self) -> bool:
        """Whether TRL keeps log-probs of the sampling policy."""
        every = self.steps_per_generation * self.num_iterations
        return self.gradient_accumulation_steps % every != 0 or self.corrected


def settings_of(data: Mapping[str, object]) -> Settings:
    """Read settings from a record. Texts that transformers writes, such as "None", become their values."""
    known = {f.name for f in fields(Settings)}
    found = {name: _value(value) for name, value in data.items() if name in known}
    if isinstance(found.get("scale_rewards"), bool):  # until TRL 0.23
        found["scale_rewards"] = "group" if found["scale_rewards"] else "none"
    if found.get("steps_per_generation") is None:
        found.pop("steps_per_generation", None)
    found["replaced"] = tuple(found.get("replaced") or ())
    return Settings(**found)


def _value(value: object) -> Any:
    if value == "None":
        return None
    if isinstance(value, str) and value[:1] == "[":
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value
