"""Online learning while serving."""

from __future__ import annotations

import re
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from .base import Section


class KLConfig(Section):
    """The KL penalty, and how its weight adapts to the measured KL."""

    beta_update_mode: Literal["fixed", "auto"] = "auto"
    initial_beta: float = Field(default=0.02, ge=0, le=10)
    target_kl: float = Field(default=0.05, gt=0)
    """Target KL in nats per token."""
    kl_tolerance: float = Field(default=0.01, ge=0)
    """Beta stays unchanged while the KL is within this many nats per token of the target."""
    limit: float = Field(default=0.5, gt=0)
    """Maximum KL from the policy that answered, in nats per token, on the tokens of the update's own experience. An
    update that exceeds it is reverted."""


class ValidationConfig(Section):
    """Background validation in a separate process, and the guard that stops publishing."""

    enabled: bool = True
    every_updates: int = Field(default=16, ge=1)
    """Minimum number of updates between two validations."""
    tasks: int = Field(default=64, ge=1)
    """Held-out tasks for measuring success, with greedy decoding."""
    canary_tasks: int = Field(default=16, ge=0)
    """Tasks with known answers for checking the voted labels."""
    max_drop: float = Field(default=0.05, gt=0, le=1)
    """Maximum drop of the success rate below the best validated version. A version that exceeds it is not served, and
    learning returns to the last validated version."""
    max_text_loss: float = Field(default=0.02, gt=0)
    """Maximum relative loss of log-likelihood on a fixed set of unrelated texts, compared with the start. A version
    that exceeds it is not served. This and `max_text_kl` do not apply to a model that does not know such texts."""
    max_text_kl: float = Field(default=0.2, gt=0)
    """Maximum KL from the start on these texts, in nats per token. A version that exceeds it is not served."""


class OnlineConfig(Section):
    """The inference engine and the update worker."""

    updates: bool = True
    """Whether to learn. false: serve only."""

    requests: str | None = None
    """A JSONL file of requests, or `-` for standard input. null: tasks of the environment, unless `serve` is set."""
    max_requests: int | None = Field(default=None, ge=1)
    """Stop after this many requests. null: stop after the last one (with `serve`: never)."""
    serve: str | None = None
    """`HOST:PORT` of the HTTP server. Interfaces other than loopback require a token (`GRPO_TUI_TOKEN`)."""
    tls_certificate: str | None = None
    """A PEM file. Enables HTTPS instead of HTTP. Set `tls_key` if the key is not in the same file."""
    tls_key: str | None = None
    """A PEM file with the private key."""
    image_folders: list[str] = Field(default_factory=list)
    """Folders whose images callers may name by path. All other images are sent as data URLs."""
    max_waiting: int = Field(default=64, ge=1)
    """Maximum number of waiting callers. Others get status 429."""
    request_timeout_s: float = Field(default=120.0, gt=0)
    """Seconds after which a request is dropped and its caller gets an error."""

    answer: str = Field(default="environment", min_length=1, max_length=500)
    """The part of a text that votes and feedback compare: `environment` (the environment's own answer), `boxed`,
    `last_number`, `choice`, `json:PATH`, a function (`file.py:name`), or a regular expression (its first group)."""
    samples: int = Field(default=8, ge=2)
    """Voting trajectories sampled per request. In a conversation, the answer is a single text sampled with the model's
    generation defaults, and the voting trajectories are sampled afterwards. With `ensemble: true`, a caller gets the
    majority answer instead."""
    samples_to_learn: int = Field(default=0, ge=0)
    """Additional trajectories per request, sampled after its answer is sent. They vote on the label
    and are learned from. They improve labels but cost the engine time. Ignored with `updates: false`."""
    batch_requests: int = Field(default=4, ge=1)
    """Maximum number of waiting requests answered in one batch."""
    temperature: float = Field(default=1.0, gt=0)
    max_turn_tokens: int = Field(default=64, ge=1)
    max_trajectory_tokens: int = Field(default=512, ge=1)
    neighbours: int = Field(default=2, ge=0)
    """Number of earlier experiences, nearest by embedding, that also vote."""
    min_confidence: float = Field(default=0.5, ge=0, le=1)
    """The confidence gate: minimum share of the vote for the ensemble answer. Below it, nothing is learned."""
    learn_from: Literal["all", "initial", "feedback"] = "all"
    """The data to learn from. `all`: all trajectories of a request. `initial`: only the first. `feedback`: only
    feedback, not votes or reward functions."""

    lr_correction: float = Field(default=1e-3, gt=0)
    """Learning rate if the vote overturned the initial answer."""
    lr_adaptive_max: float = Field(default=1e-3, gt=0)
    """Learning rate otherwise, at the lowest confidence that passes the gate."""
    lr_adaptive_min: float = Field(default=2e-4, gt=0)
    """Learning rate at full confidence. In between, it falls linearly."""

    queue: str = "sqlite"
    """The queue of tasks for the update worker. `sqlite`: a file of the run. Otherwise a Redis server, which engines on
    several machines can share: `redis://[USER:PASSWORD@]HOST:PORT/NUMBER` (`rediss://` for TLS, `unix://` for a
    socket)."""
    queue_env: str | None = None
    """An environment variable with the server's URL, instead of `queue`. Use it for a URL with a password."""
    queue_name: str = Field(default="default", pattern=r"[A-Za-z0-9._-]{1,64}")
    """The name of the queue. Engines with the same server and name serve and train one policy."""
    shared_files: str | None = None
    """Where machines that share a queue exchange snapshots and states: a folder accessible to all of them, or an fsspec
    URL (`s3://BUCKET/FOLDER`)."""
    lease_s: float = Field(default=15.0, gt=0)
    """A shared queue has one active worker. A standby takes over if it is silent for this many seconds."""
    queue_limit: int = Field(default=512, ge=1)
    """Maximum number of waiting tasks on a machine. Beyond it, the oldest is dropped."""
    staleness_limit: int = Field(default=16, ge=0)
    """Maximum age of a task in policy versions. Older tasks are dropped."""

    kl: KLConfig = KLConfig()
    source_share: float = Field(default=0.25, gt=0, le=1)
    """Maximum share of one source (a token or an address, and each `user` that it names) in the effect of recent
    updates. For questions from few sources, the cap is an equal share if that is larger."""
    advantage_limit: float = Field(default=3.0, gt=0)
    """Advantages are clipped to ± this value, so that no single reward dominates."""
    max_norm: float = Field(default=1.0, gt=0)
    """Maximum gradient norm. Larger gradients are clipped."""
    max_update_norm: float = Field(default=1.0, gt=0)
    """Maximum step length of one update: the L2 norm over all trained parameters."""
    ema_decay: float = Field(default=0.9, ge=0, lt=1)
    """Decay of the served model, a moving average: each update moves it 1 − `ema_decay` of the way to the live one."""
    snapshot_every: int = Field(default=8, ge=1)
    """Number of updates between two published snapshots."""
    keep_snapshots: int = Field(default=4, ge=1)
    commit_every: int = Field(default=4, ge=1)
    """Number of updates between two commits of the worker's state. After a crash, uncommitted updates are repeated."""
    poll_interval_s: float = Field(default=0.2, gt=0)
    """Interval in seconds at which the engine polls for a new snapshot and the worker for a task."""
    worker_nice: int = Field(default=10, ge=0, le=19)
    """The niceness of the update worker and of background validation."""
    validation: ValidationConfig = ValidationConfig()

    @field_validator("queue")
    @classmethod
    def _queue_is_known(cls, value: str) -> str:
        # A password stands before the host and nowhere else: there it is known to be one and kept out of the record.
        if value != "sqlite" and not re.fullmatch(r"(redis|rediss|unix)://[^/\s]*(/[^@\s]*)?", value):
            raise ValueError("sqlite, or the URL of a Redis server: redis://HOST:PORT/NUMBER (/ in a password as %2F)")
        if re.search(r"[?&](username|password)=", value):
            raise ValueError("user and password come before the host: redis://USER:PASSWORD@HOST:PORT/NUMBER")
        return value

    @property
    def max_learning_rate(self) -> float:
        """The maximum learning rate of a task. Higher ones are rejected."""
        return 5 * max(self.lr_correction, self.lr_adaptive_max)

    @property
    def is_shared(self) -> bool:
        return self.queue_env is not None or self.queue != "sqlite"

    @model_validator(mode="after")
    def _rates_in_order(self) -> Self:
        if self.lr_adaptive_min > self.lr_adaptive_max:
            raise ValueError(f"lr_adaptive_min {self.lr_adaptive_min} is above lr_adaptive_max {self.lr_adaptive_max}")
        return self
