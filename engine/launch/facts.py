"""Facts about the surroundings of a run: versions, machine, command, and environment variables."""

from __future__ import annotations

import os
import platform
import sys
from typing import Any

from ..runs.masking import mask, mask_command

PACKAGES = ("grpo-tui", "torch", "transformers", "trl", "peft", "accelerate", "datasets", "numpy")
VARIABLES = (
    "CUDA_",
    "OMP_",
    "MKL_",
    "NCCL_",
    "HF_",
    "TRANSFORMERS_",
    "TOKENIZERS_",
    "WANDB_",
    "ACCELERATE_",
    "PYTORCH_",
)


def gather() -> dict[str, Any]:
    """Return plain data with masked secrets."""
    return mask(
        {
            "command": mask_command(sys.argv),
            "folder": os.getcwd(),
            "python": platform.python_version(),
            "platform": platform.platform(),
            "cpus": os.cpu_count(),
            "packages": {name: found for name in PACKAGES if (found := _version(name))},
            "environment": {k: v for k, v in sorted(os.environ.items()) if k.startswith(VARIABLES)},
        }
    )


def _version(name: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
