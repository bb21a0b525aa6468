"""Creates the agent of a run whose turns are written by servers."""

from __future__ import annotations

import os
from pathlib import Path

from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ....configs.schema import RunConfig
from ....envs.agent import Message
from ...policy.unwrap import base_of
from ...policy.vision.inputs import VisionModel
from ..chat import ChatBridge
from ..decoder import UnsupportedModelError, stop_ids_of
from ..sampling import AgentSettings
from .adapters import AdapterPublisher
from .agent import RemoteAgent
from .pool import ServerPool

SERVED = "served"
"""A run's default folder for adapter versions."""
FLOAT32_TOLERANCE, HALF_TOLERANCE = 1e-3, 0.05
"""Allowed difference between two implementations of one policy, in nats per token."""
PROBE_TOKENS = 60
PROBE: list[Message] = [
    {
        "role": "user",
        "content": "Every server that writes for this policy has to say of these words what the trainer says of them: "
        '{"name": "ANSWER", "arguments": {"text": "17"}}. The object at (31, 40) is red; which is the larger one, '
        "and how many are there? First measure, then compare, and answer with one word.",
    }
]


def open_remote_agent(
    config: RunConfig,
    model: PeftModel | PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    settings: AgentSettings,
    run_dir: Path,
    *,
    name: str = "",
    counted: str = "s",
    request_timeout_s: float | None = None,
    wait_s: float | None = None,
) -> RemoteAgent:
    """Create the agent, without a request to any server.

    name: prefix of version names (default: the run's). counted: see `AdapterPublisher`. request_timeout_s, wait_s: see
    `ServerPool`; None: as configured. Raises MissingHTTPClient, and UnsupportedModelError for a vision-language model,
    since servers get only text.
    """
    rollouts = config.rollouts
    if VisionModel.of(base_of(model)) is not None:
        raise UnsupportedModelError(
            "rollouts.engine: vllm sends only token ids, and this policy sees images. Use transformers instead."
        )
    assert isinstance(model, PeftModel)  # servers get adapters: `configs/checks.py` refuses everything else
    chat = ChatBridge(tokenizer, stop_ids=stop_ids_of(model), template_kwargs=config.model.chat_template_kwargs)
    folder = Path(rollouts.adapter_folder).expanduser() if rollouts.adapter_folder else run_dir.absolute() / SERVED
    pool = ServerPool(
        rollouts.servers,
        key=os.environ.get(rollouts.api_key_env),
        request_timeout_s=rollouts.request_timeout_s if request_timeout_s is None else request_timeout_s,
        wait_s=rollouts.server_wait_s if wait_s is None else wait_s,
    )
    publisher = AdapterPublisher(
        name or run_dir.name,
        folder,
        rollouts.adapter_folder_on_servers or str(folder.absolute()),
        pool,
        chat.prompt(PROBE)[:PROBE_TOKENS],
        tolerance_of(config),
        counted=counted,
    )
    return RemoteAgent(model, chat, settings, pool, publisher, native_calls=config.model.native_calls)


def tolerance_of(config: RunConfig) -> float:
    """Return the allowed mean difference in nats per token between a server's log-probs and the trainer's."""
    usual = FLOAT32_TOLERANCE if config.model.compute == "float32" else HALF_TOLERANCE
    return config.rollouts.probe_tolerance or usual
