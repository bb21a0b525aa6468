"""The agent of a run: the policy in this process, or as servers serve it."""

from __future__ import annotations

import os
from pathlib import Path

from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ...configs.schema import RunConfig
from ...envs.agent import Message
from ..agents.chat import ChatBridge
from ..agents.decoder import UnsupportedModelError, stop_ids_of
from ..agents.remote.adapters import AdapterPublisher
from ..agents.remote.agent import RemoteAgent
from ..agents.remote.pool import ServerPool
from ..agents.settings import AgentSettings
from ..agents.sight_check import check_sight
from ..agents.transformers_agent import TransformersAgent
from ..policy.sight.processor import Sight
from .server_rollouts import ServerOptions

SERVED = "served"
"""Folder of a run where versions of its adapters lie for the servers, unless another one is named."""
FLOAT32_TOLERANCE, HALF_TOLERANCE = 1e-3, 0.05
"""Nats a token between two implementations of one policy: summed in another order, or rounded to 8 bits of fraction."""
PROBE_TOKENS = 60
PROBE: list[Message] = [
    {
        "role": "user",
        "content": "Every server that writes for this policy has to say of these words what the trainer says of them: "
        '{"name": "ANSWER", "arguments": {"text": "17"}}. The object at (31, 40) is red; which is the larger one, '
        "and how many are there? First measure, then compare, and answer with one word.",
    }
]


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
    if sight is not None:
        raise UnsupportedModelError(
            "rollouts.engine: vllm sends token ids alone, and this policy looks at images; use transformers instead"
        )
    chat = ChatBridge(tokenizer, stop_ids=stop_ids_of(model), template_kwargs=template)
    folder = Path(rollouts.adapter_folder).expanduser() if rollouts.adapter_folder else run_dir.absolute() / SERVED
    assert isinstance(model, PeftModel)  # servers are given adapters: `configs/checks.py` refuses the rest
    pool = ServerPool(
        rollouts.servers,
        key=os.environ.get(rollouts.api_key_env),
        request_timeout_s=rollouts.request_timeout_s,
        wait_s=rollouts.server_wait_s,
    )
    half = FLOAT32_TOLERANCE if config.model.dtype == "float32" else HALF_TOLERANCE
    publisher = AdapterPublisher(
        run_dir.name,
        folder,
        rollouts.adapter_folder_on_servers or str(folder.absolute()),
        pool,
        chat.prompt(PROBE)[:PROBE_TOKENS],
        rollouts.probe_tolerance or half,
    )
    return RemoteAgent(model, chat, settings, pool, publisher, native_calls=config.model.native_calls)


def server_options(config: RunConfig) -> ServerOptions:
    """What the pipeline has to know of servers."""
    rollouts = config.rollouts
    return ServerOptions(rollouts.max_staleness, rollouts.correction, rollouts.correction_cap, rollouts.max_mismatch)
