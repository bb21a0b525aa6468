"""The agent of a run: the policy in this process, or on servers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...configs.errors import GrpoTuiError
from ...configs.schema import RunConfig
from ..agents.remote.agent import RemoteAgent, open_remote_agent
from ..agents.remote.pool import record_change
from ..agents.transformers_agent import TransformersAgent
from ..agents.vision_check import check_vision
from ..policy.models import load_policy, load_vision
from ..record.step_recorder import StepRecorder
from .env_trainer import GRPOEnvTrainer


def load_agent(config: RunConfig, run_dir: Path, *, trainable: bool) -> TransformersAgent | RemoteAgent:
    """Load the policy and make the agent that `rollouts.engine` names.

    Raises ModelLoadError, MissingHTTPClient, and UnsupportedModelError for a vision-language model on servers, which
    get only text.
    """
    model, tokenizer = load_policy(config.model, adapters=config.model.sft_adapters, trainable=trainable)
    vision = load_vision(config.model, model, tokenizer)
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_turn_tokens", "max_trajectory_tokens")
    settings = {name: getattr(config.training, name) for name in names}
    if config.rollouts.engine != "transformers":
        return open_remote_agent(config, model, tokenizer, settings, run_dir)
    template, native = config.model.chat_template_kwargs, config.model.native_calls
    agent = TransformersAgent(
        model, tokenizer, **settings, template_kwargs=template, vision=vision, native_calls=native
    )
    check_vision(agent)
    return agent


@contextmanager
def served(trainer: GRPOEnvTrainer, recorder: StepRecorder) -> Iterator[None]:
    """Record server events during a training. If they end it, save the current step first."""
    agent = trainer.agent
    if not isinstance(agent, RemoteAgent):
        yield
        return

    agent.pool.tell = lambda sentence, good: record_change(
        recorder.event, sentence, good, step=trainer.state.global_step
    )
    try:
        yield
    except GrpoTuiError:
        if trainer.checkpoint_of(trainer.state.global_step) is None and trainer.state.global_step:
            trainer.save_checkpoint()
            trainer.tell_saved()
        raise
    finally:
        # The folders of adapters belong to the main process.
        (agent if trainer.accelerator.is_main_process else agent.pool).close()
