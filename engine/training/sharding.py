"""Weights sharded over the processes of a training run (FSDP2: torch's `fully_shard`).

The loss and its gradient run on shards: each process gathers one decoder layer at a time. Rollouts, evaluations,
log-probs and saving run inside `whole`, where each process holds all weights. A process then needs memory for the whole
model, but never for all gradients and optimiser states.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial

from accelerate import Accelerator
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from ..policy.patches import patched
from ..policy.unwrap import base_of


def shard(model: nn.Module, accelerator: Accelerator) -> None:
    """Shard the weights, and keep accelerate from wrapping the model for data parallelism.

    Create the optimiser for the sharded weights afterwards.
    """
    mesh = init_device_mesh(accelerator.device.type, (accelerator.num_processes,))
    layers = set(getattr(base_of(model), "_no_split_modules", None) or ())
    for module in list(model.modules()):
        if type(module).__name__ in layers:
            fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)
    # torch does this in the first pass of the whole model, but `whole` and rollouts call parts of it earlier.
    fully_shard.state(model)._lazy_init()  # type: ignore[attr-defined]
    unwrapped = partial(accelerator.prepare_model, evaluation_mode=True)
    accelerator.prepare_model = unwrapped  # type: ignore[method-assign]


@contextlib.contextmanager
def whole(model: nn.Module) -> Iterator[None]:
    """Hold all weights on this process inside the block, read-only. Every process enters it at the same time."""
    parts = [m for m in model.modules() if isinstance(m, FSDPModule)]
    if not parts or getattr(model, "_is_whole", False):
        yield
        return
    with contextlib.ExitStack() as held:
        held.enter_context(patched(model, "_is_whole", True))
        for part in parts:
            part.set_reshard_after_forward(False, recurse=False)
            part.unshard()
        for module in model.modules():
            if module._state_dict_pre_hooks:  # torch's hook would shard the weights again
                held.enter_context(patched(module, "_state_dict_pre_hooks", type(module._state_dict_pre_hooks)()))
        try:
            yield
        finally:
            for part in parts:
                part.set_reshard_after_forward(part is not model, recurse=False)
                part.reshard()
