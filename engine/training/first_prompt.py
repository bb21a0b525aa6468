"""`python -m grpo_tui.engine.training.first_prompt CONFIG`: the first prompt of a run, as the policy will read it.

A process of its own, so that the command line needs neither torch nor an environment's code. Nothing is downloaded:
where the model's tokenizer is not on this machine, the messages are shown as they are.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...configs.schema import RunConfig
from ...configs.sections.model import ModelConfig
from ...envs.agent import CallReader

if TYPE_CHECKING:
    from ..agents.chat import ChatBridge


@dataclass(frozen=True)
class Reader:
    """A policy that only reads, as environments ask it (`envs.agent`). known: environments that it was taught."""

    known: Sequence[str] = ()
    call_reader: CallReader | None = None

    def knows(self, environment: str) -> bool:
        return environment in self.known


def reader(config: ModelConfig) -> tuple[Reader, ChatBridge]:
    """Return a reader of a model's prompts, without its weights. Raises ModelLoadError, ChatTemplateError."""
    from transformers import AutoConfig

    from ..agents.chat import ChatBridge
    from ..agents.tool_calls import NativeCalls
    from ..policy.sources import ModelLoadError, base_source, explain, load_tokenizer

    chat = ChatBridge(load_tokenizer(config), template_kwargs=config.chat_template_kwargs)
    source, revision = base_source(config)
    try:
        known = getattr(AutoConfig.from_pretrained(source, revision=revision), "known_environments", None) or ()
    except (OSError, ValueError) as problem:
        raise ModelLoadError(explain(config.base, problem)) from problem
    return Reader(known, NativeCalls.of(chat) if config.native_calls else None), chat


def first_prompt(config: RunConfig) -> str:
    """Return the prompt of the first training task, in the chat template if the model is on this machine.

    Raises DataError, EnvLoadError, and any error of the environment.
    """
    from ...envs.loading import make_env
    from ..policy.sources import ModelLoadError
    from ..rollouts.dataset import load_rows
    from ..rollouts.prompts import prompt_of

    chat = None
    try:
        policy, chat = reader(config.model)
    except ModelLoadError:  # not on this machine
        policy = Reader()
    tokenizer = None if chat is None else chat.tokenizer
    environment = config.environment.model_copy(update={"train_tasks": 1})
    row = load_rows(environment, "train", config.seed, tokenizer, config.data)[0]
    prompt = prompt_of(make_env(row.env_class_path, row.env_config, tokenizer), row.task_data, policy)
    if chat is not None:
        return chat.prompt_text(prompt.messages, prompt.tools)
    said = "\n".join(_message(m) for m in prompt.messages)
    return f"({config.model.base} is not on this machine, so its chat template is not applied)\n{said}"


def _message(message: Mapping[str, Any]) -> str:
    return f"[{message.get('role')}]\n{message.get('content', '')}"


def main(arguments: Sequence[str]) -> int:
    """Print the prompt. 1: it cannot be made, with one sentence on standard error."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from ...configs.loading import load_config
    from ..launch.outcome import one_sentence

    try:
        print(first_prompt(load_config(arguments[0])))
    except Exception as problem:  # whatever a model, a template or an environment raises
        print(one_sentence(problem), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
