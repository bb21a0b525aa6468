"""Chat with a saved policy of a run. A process serves the weights on this machine without learning."""

from __future__ import annotations

from pathlib import Path

from ...configs.schema import CHAT_ENV, RunConfig
from ...configs.sections import EnvironmentConfig, LoggingConfig, OnlineConfig, RewardsConfig, RolloutsConfig
from ..launch.start import start_run
from ..runs.types import RunInfo
from .results import EvaluationError
from .subjects import find_subject


def chat_config(policy: str, runs_dir: Path) -> RunConfig:
    """Return the configuration of a server for a policy (`RUN`, `RUN@STEP` or `RUN@base`; see `find_subject`).

    Raises EvaluationError, RunNotFound, ConfigError.
    """
    subject = find_subject(policy, runs_dir)
    if subject.run is None or subject.evaluation is not None:
        raise EvaluationError(f"{policy} has no policy of its own: chat with the run that it evaluates")
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
            updates=False,
            serve="127.0.0.1:0",
            max_turn_tokens=min(512, length),
            max_trajectory_tokens=length,
        ),
    }
    return config.model_copy(update=changed)


def start_chat(policy: str, runs_dir: Path) -> RunInfo:
    """Start a server for a policy as a separate run. Its address appears once the weights are loaded.

    The server stops when this process ends, because this process holds the other end of the server's standard input.
    Raises the errors of `chat_config` and `start_run`.
    """
    from subprocess import PIPE

    return start_run(chat_config(policy, runs_dir), runs_dir=runs_dir, stdin=PIPE)
