"""Communication between the processes of a training run. With one process, nothing is sent."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object
from torch import nn

from ...configs.errors import GrpoTuiError
from ..policy.unwrap import base_of
from ..policy.vision.inputs import VisionModel
from . import TrainingError

T = TypeVar("T")


FSDP, DEEPSPEED = "ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED"


def check_supported(mode: str, environment: Mapping[str, str] = os.environ) -> None:
    """Refuse any weight sharding other than FSDP2, and all sharding outside of GRPO.

    environment: the variables that `accelerate launch` sets. Raises TrainingError.
    """
    kind = ""
    if _is_set(environment, DEEPSPEED):
        kind = "DeepSpeed"
    elif _is_set(environment, FSDP) and (mode != "rft" or environment.get("FSDP_VERSION") != "2"):
        kind = "FSDP 1" if mode == "rft" else f"FSDP with --mode {mode}"
    if kind:
        raise TrainingError(
            f"{kind} is not supported; use an accelerate config with distributed_type MULTI_GPU or MULTI_CPU, "
            "--num-processes, or for GRPO distributed_type FSDP with fsdp_version 2"
        )


def take_sharding() -> bool:
    """Return whether the launch asks for FSDP2, and remove the request.

    accelerate would shard the weights before the model is prepared for packed rows, and never on a CPU. `sharding` does
    it instead.
    """
    requested = _is_set(os.environ, FSDP)
    os.environ.pop(FSDP, None)
    return requested


def may_idle(model: nn.Module) -> bool:
    """Return whether a pass may leave parameters unused, for which DDP must then search.

    Every pass uses every adapter, except those of a vision tower, which idles when no row of a batch has an image.
    """
    vision_model = VisionModel.of(base_of(model))
    return vision_model is not None and vision_model.tower.trained


def _is_set(environment: Mapping[str, str], name: str) -> bool:
    return environment.get(name, "false").lower() in ("1", "true", "yes")


class Processes:
    """The processes of `accelerator`. All methods are collective: every process calls them in the same order."""

    def __init__(self, accelerator: Accelerator) -> None:
        self.number = accelerator.num_processes
        self.index = accelerator.process_index
        self.main = accelerator.is_main_process

    def gather(self, values: list[T]) -> list[T]:
        """Return the values of all processes, in their order."""
        return values if self.number == 1 else gather_object(values)

    def broadcast(self, value: T) -> T:
        """Return the main process's value."""
        return value if self.number == 1 else broadcast_object_list([value])[0]

    def on_main(self, make: Callable[[], T]) -> T | None:
        """Return what `make` returns on the main process, and None on the others.

        A GrpoTuiError on the main process is raised on every process, so that all of them can save the run together.
        """
        result, failed = None, None
        if self.main:
            try:
                result = make()
            except GrpoTuiError as error:
                failed = error
        message = self.broadcast(None if failed is None else str(failed))
        if failed is not None:
            raise failed
        if message is not None:
            raise TrainingError(message)
        return result

    def check_one_folder(self, folder: Path) -> None:
        """Refuse machines that do not share one run folder: each would hold only a part of every checkpoint.

        Raises TrainingError, on every process.
        """
        if self.number == 1:
            return
        mark = folder / self.broadcast(f".seen-by-all-{os.urandom(8).hex()}")
        created = False
        if self.main:
            with contextlib.suppress(OSError):  # a full disk is reported when saving
                mark.touch()
                created = True
        if not self.broadcast(created):
            return
        seen = self.gather([(socket.gethostname(), mark.exists())])
        if self.main:
            mark.unlink(missing_ok=True)
        blind = [f"process {number} on {host}" for number, (host, sees) in enumerate(seen) if not sees]
        if blind:
            raise TrainingError(
                f"{', '.join(blind)} cannot see what the first process wrote into {folder}; all processes write "
                "checkpoints, so every machine must see the folder of runs"
            )

    def share(self, values: Sequence[T], size: int) -> list[T]:
        """Return this process's `size` values out of the values of all processes."""
        return list(values[self.index * size : (self.index + 1) * size])
