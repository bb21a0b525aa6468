"""The agent of a run: the policy in this process, or as servers serve it."""

from __future__ import annotations

from pathlib import Path

from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ...configs.schema import RunConfig
from ..agents.remote.agent import RemoteAgent
from ..agents.remote.opening import open_remote_agent, tolerance_of
from ..agents.settings import AgentSettings
from ..agents.sight_check import check_sight
from ..agents.transformers_agent import TransformersAgent
from ..policy.sight.processor import Sight
from .server_rollouts import ServerOptions


def make_agent(
    config: RunConfig,
    model: PeftModel | PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sight: Sight | None,
    run_dir: Path,
) -> TransformersAgent | RemoteAgent:
    """The agent that `rollouts.engine` names. sight: of a model that takes images.

    Raises MissingHTTPClient, and UnsupportedModelError for a model that sees, of which servers get the text only.
    """
    training, rollouts = config.training, config.rollouts
    settings = AgentSettings(
        training.temperature,
        training.top_p,
        training.top_k,
        training.max_turn_tokens,
        training.max_trajectory_tokens,
    )
    template = config.model.chat_template_kwargs
    if rollouts.engine == "transformers":
        agent = TransformersAgent(
            model,
            tokenizer,
            temperature=settings.temperature,
            top_p=settings.top_p,
            top_k=settings.top_k,
            max_turn_tokens=settings.max_turn_tokens,
            max_trajectory_tokens=settings.max_trajectory_tokens,
            template_kwargs=template,
            sight=sight,
            native_calls=config.model.native_calls,
        )
        check_sight(agent)
        return agent
    return open_remote_agent(config, model, tokenizer, settings, run_dir)


def server_options(config: RunConfig) -> ServerOptions:
    """What the pipeline has to know of servers."""
    rollouts = config.rollouts
    return ServerOptions(
        rollouts.max_staleness,
        rollouts.correction,
        rollouts.correction_cap,
        rollouts.max_mismatch,
        tolerance_of(config),
    )
