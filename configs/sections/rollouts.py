"""Rollouts in the training process or on inference servers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .base import Section


class RolloutsConfig(Section):
    """Where training rollouts and answers of `grpo-tui online` are generated. docs/scaling.md explains server setup.

    All keys except `engine` apply to `vllm`: any number of `vllm serve` processes, here or on other machines, which
    read the LoRA adapters from files. `grpo-tui rollouts serve MODEL` prints and runs the right command.
    """

    engine: Literal["transformers", "vllm"] = "transformers"
    """`transformers`: the training process; `vllm`: the inference servers in `servers`."""
    servers: list[str] = Field(default_factory=list)
    """Server addresses such as http://127.0.0.1:8000."""
    api_key_env: str = "GRPO_TUI_VLLM_KEY"
    """Environment variable with the servers' API key (`vllm serve --api-key`), if they require one."""
    adapter_folder: str | None = None
    """Folder for adapter versions, on a disk that servers can read; null: `served` in the run's folder."""
    adapter_folder_on_servers: str | None = None
    """Path of the same folder on the servers; null: the same path."""
    request_timeout_s: float = Field(default=120.0, gt=0)
    """Seconds after which a running turn is checked. Its server has failed if it generates nothing else either, or if
    the turn takes four times as long as expected from the server's pace. Long turns need no larger value."""
    server_wait_s: float = Field(default=300.0, gt=0)
    """Seconds to wait while no server answers. Then training saves a checkpoint and ends, and `grpo-tui online` asks
    clients to retry later."""

    max_staleness: int = Field(default=0, ge=0)
    """Maximum age of a trained group of rollouts, in optimiser steps; 0: each step waits for its own rollouts."""
    steps_ahead: int | None = Field(default=None, ge=1)
    """Number of later steps whose rollouts are generated while the trainer works; null: `max_staleness`. With fewer, a
    step trains on complete groups and waits only for a group that would become too old."""
    correction: Literal["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"] = "token_truncate"
    """Importance weights for rollouts of an older policy, or of a sampler that rounds differently. `token`: the
    probability ratio of each token. `sequence`: the product of a rollout's ratios (MIS). `truncate` clamps a weight to
    `correction_floor` and `correction_cap`. `mask` sets it to 0 outside them (with `token`: IcePop). `none`: only the
    clipped ratio of the loss."""
    correction_floor: float = Field(default=0.0, ge=0)
    correction_cap: float = Field(default=3.0, gt=0)
    probe_tolerance: float | None = Field(default=None, gt=0)
    """Maximum mean difference between server and trainer log-probs of a fixed text, in nats per token; null: 1e-3 in
    float32, else 0.05."""
    max_mismatch: float = Field(default=0.1, gt=0)
    """Maximum mean difference between server and trainer log-probs of the current policy's rollouts, in nats per token.
    Above it, the run ends."""

    @property
    def ahead(self) -> int:
        """How many steps of rollouts to make ahead while the trainer works."""
        return self.max_staleness if self.steps_ahead is None else self.steps_ahead
