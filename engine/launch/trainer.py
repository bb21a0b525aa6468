"""Whether the trainer is installed: the viewer, the importers and the recorder do without it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import LaunchError

if TYPE_CHECKING:
    from ...configs.schema import RunConfig

LIBRARIES = ("torch", "transformers", "trl", "peft", "accelerate", "datasets")
INSTALL = "pip install 'grpo-tui[train]'"


def missing() -> list[str]:
    """Return which of the libraries that training cannot do without are not installed. Imports none of them."""
    return [name for name in LIBRARIES if importlib.util.find_spec(name) is None]


def check_processes(config: RunConfig, num_processes: int, accelerate_config: Path | None) -> None:
    """Raise LaunchError for processes that training would refuse once it has loaded the model, or accelerate before."""
    kind, number = "", num_processes
    if accelerate_config is not None:
        import yaml

        try:
            found = yaml.safe_load(accelerate_config.read_text())
        except (OSError, ValueError, yaml.YAMLError) as problem:
            raise LaunchError(f"the accelerate config {accelerate_config} cannot be read: {problem}") from problem
        found = found if isinstance(found, dict) else {}
        kind, number = str(found.get("distributed_type", "")), found.get("num_processes", number)
        if found.get("use_deepspeed") or found.get("deepspeed_config"):
            kind = "DEEPSPEED"
        elif found.get("fsdp_config"):
            kind = "FSDP"
    if kind.upper() in ("DEEPSPEED", "FSDP", "MEGATRON_LM", "TP"):
        raise LaunchError(
            f"{accelerate_config}: {kind} is not supported: every process needs the whole model; use distributed_type "
            "MULTI_GPU or MULTI_CPU, or --num-processes"
        )
    if config.rollouts.engine == "vllm" and isinstance(number, int) and number > 1:
        raise LaunchError(
            f"rollouts on servers go with one training process, not {number}; start it with --num-processes 1, or use "
            "rollouts.engine: transformers"
        )


def require(what: str) -> None:
    """Raise LaunchError if the trainer is not installed. what: a noun for the refused work, as in "training"."""
    if lacking := missing():
        raise LaunchError(f"{what} needs the trainer ({', '.join(lacking)} not installed): {INSTALL}")
