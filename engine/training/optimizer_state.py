"""The state of an optimiser in a checkpoint. Any number of processes can read it.

With sharded weights (`sharding`), each process writes its own part with `torch.distributed.checkpoint`, as safetensors
into `optimizer/`, and nothing is gathered. Otherwise the main process writes `optimizer.safetensors`. All values that
are not tensors are in `optimizer.json`.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor, distribute_tensor

logger = logging.getLogger(__name__)

TENSORS = "optimizer"
WHOLE = "optimizer.safetensors"
NUMBERS = "optimizer.json"


def save_optimizer(optimizer: torch.optim.Optimizer, folder: Path, main: bool) -> None:
    """Save the state of an optimiser. Every process calls it; the main one writes `optimizer.json`. Raises OSError."""
    state = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}
    plain: dict[str, dict[str, object]] = {}
    for index, values in state["state"].items():
        for name, value in values.items():
            if isinstance(value, Tensor):
                tensors[f"{index}.{name}"] = value.detach()
            else:
                plain.setdefault(str(index), {})[name] = value
    if any(isinstance(tensor, DTensor) for tensor in tensors.values()):
        # number the file of each tensor, because torch holds a whole file in memory while it writes it
        ends = accumulate(tensor.nbytes for tensor in tensors.values())
        files = {name: 1 + end // (256 << 20) for name, end in zip(tensors, ends, strict=True)}
        writer = HuggingFaceStorageWriter(str(folder / TENSORS), fqn_to_index_mapping=files, save_distributed=True)
        with _one_error():
            save(tensors, storage_writer=writer)
    elif main:
        save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, folder / WHOLE)
    if main:
        facts = {"kind": _kind(optimizer), "values": plain, "param_groups": state["param_groups"]}
        (folder / NUMBERS).write_text(json.dumps(facts))


def load_optimizer(optimizer: torch.optim.Optimizer, folder: Path) -> None:
    """Load what `save_optimizer` wrote, with any number of processes. Every process calls it.

    The state of an optimiser of another kind is left out.
    """
    facts = json.loads((folder / NUMBERS).read_text())
    groups = [{k: tuple(v) if k == "betas" else v for k, v in g.items()} for g in facts["param_groups"]]
    if (kind := facts.get("kind")) not in (None, _kind(optimizer)):
        logger.warning("%s has the state of %s: %s starts empty", folder, kind, _kind(optimizer))
        optimizer.load_state_dict({"state": {}, "param_groups": groups})
        return
    state: dict[int, dict[str, Any]] = {int(i): dict(v) for i, v in facts["values"].items()}
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    tensors: dict[str, Tensor] = {}
    if (folder / TENSORS).is_dir():
        reader = HuggingFaceStorageReader(str(folder / TENSORS))
        for key, kind in reader.read_metadata().state_dict_metadata.items():
            index, _, name = key.partition(".")
            tensors[key] = state.setdefault(int(index), {})[name] = _empty(kind, weights[int(index)])
        with _one_error():
            load(tensors, storage_reader=reader, no_dist=not dist.is_initialized())
    for key, tensor in load_file(folder / WHOLE).items() if (folder / WHOLE).is_file() else ():
        index, _, name = key.partition(".")
        weight = weights[int(index)]
        if isinstance(weight, DTensor) and tensor.shape == weight.shape:
            tensor = distribute_tensor(tensor.to(weight.device), weight.device_mesh, weight.placements)
        state.setdefault(int(index), {})[name] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _kind(optimizer: torch.optim.Optimizer) -> str:
    """Return the class of the optimiser that accelerate may have wrapped."""
    return type(getattr(optimizer, "optimizer", optimizer)).__name__


def _empty(kind: object, weight: Tensor) -> Tensor:
    """Return a tensor to read into, sharded like its weight if it has the weight's shape."""
    assert isinstance(kind, TensorStorageMetadata)
    if isinstance(weight, DTensor) and kind.size == weight.shape:
        return torch.empty_like(weight, dtype=kind.properties.dtype)
    return torch.empty(kind.size, dtype=kind.properties.dtype)


@contextmanager
def _one_error() -> Iterator[None]:
    """Raise the first error of any process itself. torch wraps them in one that is not an Exception."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")
            yield
    except CheckpointException as failed:
        raise next(error for error, _ in failed.failures.values()) from failed
