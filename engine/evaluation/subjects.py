"""Policies to evaluate, or to serve for a chat: a run, a checkpoint of it, adapters, a model, or an endpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE
from urllib.parse import urlsplit

from ...configs.schema import CHAT_ENV, RunConfig
from ...configs.sections import EnvironmentConfig, LoggingConfig, OnlineConfig, RewardsConfig, RolloutsConfig
from ...configs.sections.model import ENDPOINT
from ..launch.find import RunNotFound, find_run
from ..launch.settings import read_config
from ..launch.start import start_run
from ..runs.health.checkpoints import checkpoint_folder, policies
from ..runs.paths import adapters_dir
from ..runs.types import RunInfo
from .results import EvaluationError

BASE = "base"
"""`RUN@base`: the policy that the run started from."""


@dataclass(frozen=True)
class Subject:
    """A policy to evaluate.

    run: the configuration of the policy's run, None for a model or adapters. folder: the folder of that run. weights: a
    folder of adapters or of a whole model, a model's name, or an endpoint's `URL@NAME`. None: the policy that the run
    started from. evaluation: the folder of an existing evaluation, instead of all of these.
    """

    name: str
    run: RunConfig | None = None
    weights: str | None = None
    step: int = 0
    folder: Path | None = None
    evaluation: Path | None = None

    @property
    def is_adapters(self) -> bool:
        return self.weights is not None and (Path(self.weights).expanduser() / "adapter_config.json").is_file()

    def configure(self, config: RunConfig) -> RunConfig:
        """Return `config` with this policy as its model."""
        model = config.model if self.run is None else self.run.model
        if self.weights is not None:
            changed = (
                {"sft_adapters": self.weights} if self.is_adapters else {"base": self.weights, "sft_adapters": None}
            )
            model = model.model_copy(update=changed)
        return config.model_copy(update={"model": model})


def _endpoint(text: str, model: str | None) -> Subject:
    """Parse `URL` or `URL@NAME`. model: the model's name if `text` has none. Raises EvaluationError."""
    url = urlsplit(text)
    if "@" in url.netloc or url.query:
        raise EvaluationError("an address would be recorded with its key: export OPENAI_API_KEY, or use --api-key-env")
    address, _, name = text.partition("@")
    if not (name or model):
        raise EvaluationError(f"no model of {address} is named: use --model, or {address}@NAME")
    text = f"{address.removesuffix('/')}@{name or model}"
    return Subject(text, weights=text)


def find_subject(text: str, runs_dir: Path, model: str | None = None) -> Subject:
    """Find the policy that the user named. model: the name of an endpoint's model. Raises EvaluationError, RunNotFound,
    ConfigError."""
    if text.startswith(ENDPOINT):
        return _endpoint(text, model)
    name, _, step_text = text.rpartition("@") if "@" in text else (text, "", "")
    try:
        run = find_run(runs_dir, name)
    except RunNotFound:
        folder = Path(text).expanduser()
        if folder.is_dir() and not any((folder / n).is_file() for n in ("adapter_config.json", "config.json")):
            needed = "neither adapters (adapter_config.json) nor a model (config.json)"
            raise EvaluationError(f"{text} contains {needed}") from None
        if folder.is_dir() or text.count("/") == 1 or text.startswith("builtin:"):
            return Subject(text, weights=text)
        raise
    path = Path(run.path)
    config = read_config(path)
    if config.mode == "eval":
        return Subject(text, evaluation=path)
    section = config.sft if config.mode == "sft" else config.training
    kept = policies(checkpoint_folder(path))
    text = f"{run.id}@{step_text}" if step_text else run.id
    if step_text == BASE:
        return Subject(text, config, folder=path)
    if step_text:
        folder = kept.get(int(step_text)) if step_text.isdecimal() else None
        if folder is None:
            steps = ", ".join(map(str, kept)) or "none"
            raise EvaluationError(
                f"run {run.id} has no checkpoint of step {step_text}; it has {steps}, and `{run.id}@base`"
            )
        return Subject(text, config, str(folder), int(step_text), path)
    final = adapters_dir(section.output_dir, path.name)
    if final.is_dir():
        return Subject(text, config, str(final), run.step, path)
    if not kept:
        raise EvaluationError(f"run {run.id} has neither saved adapters nor a checkpoint; `{run.id}@base` is its start")
    step, folder = max(kept.items())
    return Subject(text, config, str(folder), step, path)


def start_chat(policy: str, runs_dir: Path) -> RunInfo:
    """Start a server for a policy (`RUN`, `RUN@STEP` or `RUN@base`) as a separate run that does not learn. Its address
    appears once the weights are loaded.

    The server stops when this process ends, because this process holds the other end of the server's standard input.
    Raises EvaluationError, RunNotFound, ConfigError, and the errors of `start_run`.
    """
    subject = find_subject(policy, runs_dir)
    if subject.run is None or subject.evaluation is not None:
        raise EvaluationError(f"{policy} is not a training run: give the run whose policy you want to chat with")
    config = subject.configure(subject.run)
    if config.model.is_endpoint:
        raise EvaluationError(f"{policy} is an endpoint: chat with its server directly")
    length = subject.run.training.max_trajectory_tokens
    changed = {
        "mode": "online",
        "name": f"chat with {subject.name}",
        "environment": EnvironmentConfig(class_path=CHAT_ENV, eval_tasks=0),
        "rewards": RewardsConfig(w_curiosity=0.0, w_coherence=0.0),  # they compare turns and need a forward pass
        "rollouts": RolloutsConfig(),  # this process answers, even if the run used servers
        "logging": LoggingConfig(wandb="off"),
        "online": OnlineConfig(
            updates=False, serve="127.0.0.1:0", max_turn_tokens=min(512, length), max_trajectory_tokens=length
        ),
    }
    return start_run(config.model_copy(update=changed), runs_dir=runs_dir, stdin=PIPE)
