"""Rollouts: by the training process, or on inference servers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .base import Section


class RolloutsConfig(Section):
    """Where rollouts of training and answers of `grpo-tui online` are made; docs/scaling.md says how to set up servers.

    All but `engine` is for `vllm`: any number of `vllm serve` processes, here or on other machines, to which the LoRA
    adapters go as files (`grpo-tui rollouts serve MODEL` prints and runs the right command).
    """

    engine: Literal["transformers", "vllm"] = "transformers"
    """`transformers`: the training process itself; `vllm`: the inference servers at `servers`."""
    servers: list[str] = Field(default_factory=list)
    """Addresses such as http://127.0.0.1:8000."""
    api_key_env: str = "GRPO_TUI_VLLM_KEY"
    """Environment variable that holds the servers' key (`vllm serve --api-key`), where they want one."""
    adapter_folder: str | None = None
    """Where versions of the adapters are written, on a disk that servers see; null: `served` in the run's folder."""
    adapter_folder_on_servers: str | None = None
    """The same folder as the servers see it; null: by the same path."""
    request_timeout_s: float = Field(default=120.0, gt=0)
    """Seconds after which a turn is looked after. Its server has failed if it writes nothing else either, or if the
    turn takes four times as long as the server's pace makes likely. Long turns need no larger value."""
    server_wait_s: float = Field(default=300.0, gt=0)
    """Seconds to wait while no server answers; then a training saves a checkpoint and ends, and callers of
    `grpo-tui online` are told to come back later."""

    max_staleness: int = Field(default=0, ge=0)
    """How many optimiser steps old a group of rollouts may be when it is trained on. 0: each step waits for its own."""
    steps_ahead: int | None = Field(default=None, ge=1)
    """The number of further steps whose rollouts are made while the trainer works; null: `max_staleness`. With fewer, a
    step trains on the groups that are complete, and waits only for a group that would become too old."""
    correction: Literal["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"] = "token_truncate"
    """The weights that correct rollouts of an older policy, or of a sampler that rounds differently. `token`: each
    token by its probability ratio. `sequence`: each rollout by the product of its ratios (MIS). `truncate` limits a
    weight to `correction_floor` and `correction_cap`. `mask` makes it 0 outside them (with `token`: IcePop). `none`:
    only the clipped ratio of the loss."""
    correction_floor: float = Field(default=0.0, ge=0)
    correction_cap: float = Field(default=3.0, gt=0)
    probe_tolerance: float | None = Field(default=None, gt=0)
    """Nats a token, in the mean, by which a server's log-probs of a fixed text may differ from the trainer's; null:
    1e-3 in float32, else 0.05."""
    max_mismatch: float = Field(default=0.1, gt=0)
    """Nats a token, in the mean, by which log-probs of rollouts of the present policy may differ between servers and
    trainer; above it the run ends."""
