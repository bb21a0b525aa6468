"""The worker's state on disk: one safetensors file per commit, named by the queue's transaction.

The file name is `state.<update>-<time>.<XXH3-128 of its bytes>.safetensors`, so damage is detected. The previous state
is kept as a fallback.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import xxhash
from torch import Tensor

from ....configs.errors import GrpoTuiError
from ...runs.durable import make_folder, sync_folder, write_synced

_NAME = re.compile(r"state\.(\d+)-(\d+)\.([0-9a-f]{32})\.safetensors")


class StateError(GrpoTuiError, RuntimeError):
    """A state cannot be read. The message is for the user."""


def write_state(folder: Path, update: int, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> str:
    """Write a state durably and return its name. It counts once the queue names it. Raises OSError."""
    make_folder(folder)
    data = safetensors.torch.save(
        {k: v.detach().to("cpu").contiguous() for k, v in tensors.items()}, {"state": json.dumps(values)}
    )
    name = f"state.{update}-{time.time_ns()}.{xxhash.xxh3_128_hexdigest(data)}.safetensors"
    path = folder / name
    try:
        write_synced(path, data)
        sync_folder(folder)
    except OSError:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        raise
    return name


def read_state(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and values of a state. Raises StateError when it is missing or damaged."""
    try:
        data = path.read_bytes()
        match = _NAME.fullmatch(path.name)
        if match is None or xxhash.xxh3_128_hexdigest(data) != match[3]:
            raise StateError(f"The worker's state {path.name} is damaged: it does not match its checksum.")
        length = int.from_bytes(data[:8], "little")
        values = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["state"])
        return safetensors.torch.load(data), values
    except FileNotFoundError as error:
        raise StateError(f"The worker's state {path.name} is missing.") from error
    except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
        raise StateError(f"The worker's state {path.name} cannot be read ({error}).") from error


def states(folder: Path) -> list[tuple[int, str]]:
    """Return the states in a folder as (update, name), newest first. They may be damaged or uncommitted."""
    try:
        found = [(match, name) for name in os.listdir(folder) if (match := _NAME.fullmatch(name))]
    except FileNotFoundError:
        return []
    return [(int(m[1]), name) for m, name in sorted(found, key=lambda f: (int(f[0][1]), int(f[0][2])), reverse=True)]


def prune_states(folder: Path, counts: str, *, keep: str | None = None) -> None:
    """Delete all states but `counts`, the one before it, and `keep`."""
    names = [name for _, name in states(folder)]
    if counts not in names:
        return  # nothing goes whose successor is not there
    at = names.index(counts)
    for name in (n for n in names[:at] + names[at + 2 :] if n != keep):
        with contextlib.suppress(OSError):
            (folder / name).unlink()
