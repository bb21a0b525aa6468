"""Learning while serving."""

from __future__ import annotations

import re
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from .base import Section


class KLConfig(Section):
    """The KL penalty, and how its weight follows the measured KL."""

    beta_update_mode: Literal["fixed", "auto"] = "auto"
    initial_beta: float = Field(default=0.02, ge=0, le=10)
    target_kl: float = Field(default=0.05, gt=0)
    """Nats per token."""
    kl_tolerance: float = Field(default=0.01, ge=0)
    """Nats per token to either side of the target within which beta stays."""
    limit: float = Field(default=0.5, gt=0)
    """An update after which the policy is farther than this (nats per token, on the tokens of its own experience) from
    the policy that answered is taken back."""


class ValidationConfig(Section):
    """Background validation, in a process of its own, and the guard that stops publishing."""

    enabled: bool = True
    every_updates: int = Field(default=16, ge=1)
    """Least number of updates between two validations."""
    tasks: int = Field(default=64, ge=1)
    """Held-out tasks that success is measured on, greedily."""
    canary_tasks: int = Field(default=16, ge=0)
    """Tasks with known answers on which the voted label is checked."""
    max_drop: float = Field(default=0.05, gt=0, le=1)
    """A version whose success is more than this below the best validated one is not served, and learning goes back to
    the last validated one."""
    max_text_loss: float = Field(default=0.02, gt=0)
    """A version that gives a fixed set of unrelated texts so much less log-likelihood than the start, as a share, is
    not served. A model that does not know such texts is not measured by them."""
    max_text_kl: float = Field(default=0.2, gt=0)
    """Nor one that is farther than this from the start on these texts, in nats per token."""


class OnlineConfig(Section):
    """The inference engine and the update worker."""

    updates: bool = True
    """False: serve only, learn nothing."""

    requests: str | None = None
    """A JSONL file of requests, `-` for standard input, or null: tasks of the environment, unless `serve` is set."""
    max_requests: int | None = Field(default=None, ge=1)
    """Stop after this many requests. null: after the last one (with `serve`: never)."""
    serve: str | None = None
    """`HOST:PORT` to answer on over HTTP. Beyond the loopback interface only with a token (`GRPO_TUI_TOKEN`)."""
    tls_certificate: str | None = None
    """A PEM file: HTTPS in place of HTTP; with `tls_key`, if the key is not in the same file."""
    tls_key: str | None = None
    image_folders: list[str] = Field(default_factory=list)
    """Folders of which callers may name pictures by path; others send them along as data URLs."""
    max_waiting: int = Field(default=64, ge=1)
    """Callers that may wait. Others get status 429."""
    request_timeout_s: float = Field(default=120.0, gt=0)
    """A request is dropped after this time, and its caller gets an error."""

    answer: str = Field(default="environment", min_length=1, max_length=500)
    """The part of a text that votes and feedback compare: `environment` (the environment's own answer), `boxed`,
    `last_number`, `choice`, `json:PATH`, a function (`file.py:name`), or a regular expression, whose first group
    counts."""
    samples: int = Field(default=8, ge=2)
    """Trajectories sampled for a request; they vote. In a conversation they are drawn after the answer, which is one
    text as the model's generation defaults write it; a caller gets the majority's with `ensemble: true`."""
    samples_to_learn: int = Field(default=0, ge=0)
    """Further trajectories of a request, sampled after its answer went out: they join the vote that labels, and are
    learnt from. Better labels for more work in the engine; 0 with `updates` off."""
    batch_requests: int = Field(default=4, ge=1)
    """Maximum number of waiting requests that are answered together."""
    temperature: float = Field(default=1.0, gt=0)
    max_turn_tokens: int = Field(default=64, ge=1)
    max_trajectory_tokens: int = Field(default=512, ge=1)
    neighbours: int = Field(default=2, ge=0)
    """Earlier experiences, nearest by embedding, that vote too."""
    min_confidence: float = Field(default=0.5, ge=0, le=1)
    """The confidence gate: the ensemble answer's share of the vote below which nothing is learnt."""
    learn_from: Literal["all", "initial", "feedback"] = "all"
    """`all`: all trajectories of a request. `initial`: only the first. `feedback`: only feedback, so votes and reward
    functions teach nothing.
    """

    lr_correction: float = Field(default=1e-3, gt=0)
    """Learning rate when the initial answer was wrong by the vote."""
    lr_adaptive_max: float = Field(default=1e-3, gt=0)
    """Learning rate otherwise, at the least confidence that passes the gate …"""
    lr_adaptive_min: float = Field(default=2e-4, gt=0)
    """… falling to this at full confidence."""

    queue: str = "sqlite"
    """Where tasks wait for the update worker: `sqlite`, a file of the run, or a Redis server that engines on several
    machines share: `redis://[USER:PASSWORD@]HOST:PORT/NUMBER` (`rediss://` with TLS, `unix://` for a socket)."""
    queue_env: str | None = None
    """The environment variable that holds the server's URL, in place of `queue`: for one with a password."""
    queue_name: str = Field(default="default", pattern=r"[A-Za-z0-9._-]{1,64}")
    """Engines with the same server and name serve and teach one policy."""
    shared_files: str | None = None
    """Where machines that share a queue exchange snapshots and states: a folder that all of them see, or a URL that
    fsspec knows (`s3://BUCKET/FOLDER`)."""
    lease_s: float = Field(default=15.0, gt=0)
    """On a shared queue one worker is active. A standby takes over after this many seconds of silence."""
    queue_limit: int = Field(default=512, ge=1)
    """Tasks that wait on a machine. Beyond it the oldest is dropped."""
    staleness_limit: int = Field(default=16, ge=0)
    """Tasks answered by a policy more versions ago than this are dropped."""

    kl: KLConfig = KLConfig()
    source_share: float = Field(default=0.25, gt=0, le=1)
    """The largest share of one source (a token or an address, and each `user` that it names) in the effect of recent
    updates. For questions, an equal part where fewer sources ask.
    """
    advantage_limit: float = Field(default=3.0, gt=0)
    """Advantages are cut to ± this: no single reward may shout."""
    max_norm: float = Field(default=1.0, gt=0)
    """Gradient norm to which gradients are clipped."""
    max_update_norm: float = Field(default=1.0, gt=0)
    """Longest step (L2 norm over all trained parameters) that one update may take."""
    ema_decay: float = Field(default=0.9, ge=0, lt=1)
    """The served model moves by 1 − this of the way to the live one at each update."""
    snapshot_every: int = Field(default=8, ge=1)
    """Updates between two published snapshots."""
    keep_snapshots: int = Field(default=4, ge=1)
    commit_every: int = Field(default=4, ge=1)
    """Updates between two commits of the worker's state. Uncommitted updates are repeated after a crash."""
    poll_interval_s: float = Field(default=0.2, gt=0)
    """How often the engine looks for a new snapshot, and the worker for a task."""
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
            raise ValueError("user and password stand before the host: redis://USER:PASSWORD@HOST:PORT/NUMBER")
        return value

    @property
    def max_learning_rate(self) -> float:
        """A task with a higher learning rate is refused."""
        return 5 * max(self.lr_correction, self.lr_adaptive_max)

    @property
    def is_shared(self) -> bool:
        return self.queue_env is not None or self.queue != "sqlite"

    @model_validator(mode="after")
    def _rates_in_order(self) -> Self:
        if self.lr_adaptive_min > self.lr_adaptive_max:
            raise ValueError(f"lr_adaptive_min {self.lr_adaptive_min} is above lr_adaptive_max {self.lr_adaptive_max}")
        return self
