"""The worker's state on disk: one safetensors file a commit, named by the queue's transaction that makes it count."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from ..store.durable import sync_folder, write_synced


class StateError(RuntimeError):
    """A state cannot be read; the message is for a person."""


def write_state(folder: Path, name: str, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> Path:
    """Write a state under a name never used before, durably; it counts only once it is named. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    data = safetensors.torch.save(
        {k: v.detach().to("cpu").contiguous() for k, v in tensors.items()}, {"state": json.dumps(values)}
    )
    try:
        write_synced(path, data)
        sync_folder(folder)
    except OSError:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        raise
    return path


def read_state(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and values of a state. Raises StateError when it is missing or damaged."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            values = json.loads((file.metadata() or {})["state"])
            return {key: file.get_tensor(key) for key in file.keys()}, values  # noqa: SIM118 - not a dictionary
    except (OSError, ValueError, KeyError, safetensors.SafetensorError) as error:
        raise StateError(f"The worker's state {path} cannot be read ({error}).") from error


def remove_others(folder: Path, keep: str | None) -> None:
    """Delete all states but the one that counts."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            if name != keep and name.startswith("state."):
                with contextlib.suppress(OSError):
                    (folder / name).unlink()
