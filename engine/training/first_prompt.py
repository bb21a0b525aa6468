"""`python -m grpo_tui.engine.training.first_prompt CONFIG`: the first prompt of a run, as the policy will read it.

A process of its own, so that the command line needs neither torch nor an environment's code. Nothing is downloaded:
where the model's tokenizer is not on this machine, the messages are shown as they are.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from ...configs.schema import RunConfig
from ...envs.agent import Message


class PromptSeen(Exception):
    """The first prompt of a trial is known, and nothing more is wanted."""


class Reader:
    """An agent that reads the first prompt and does nothing else. known: names of environments that it was taught."""

    def __init__(self, known: Sequence[str], calls: Any = None) -> None:
        self.known, self.call_reader = known, calls
        self.tools: Sequence[Mapping[str, Any]] | None = None
        self.messages: list[Message] = []

    def knows(self, environment: str) -> bool:
        """See `envs.agent.knows`."""
        return environment in self.known

    def start(
        self,
        prompts: Sequence[Sequence[Message]],
        *_: Any,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **__: Any,
    ) -> NoReturn:
        """Keep the first prompt with its tools and end the trial. Raises PromptSeen."""
        self.messages, self.tools = list(prompts[0]), tools
        raise PromptSeen


def first_prompt(config: RunConfig) -> str:
    """The prompt of the first training task, rendered by the model's chat template where that is at hand.

    Raises DataError, EnvLoadError, and what the environment raises.
    """
    from transformers import AutoConfig

    from ..agents.chat import ChatBridge
    from ..agents.tool_calls import NativeCalls
    from ..policy.sources import ModelLoadError, base_source, load_tokenizer
    from ..rollouts.dataset import load_rows
    from ..rollouts.runner import RolloutRunner

    known: Sequence[str] = ()
    tokenizer = None
    try:
        source, revision = base_source(config.model)
        known = getattr(AutoConfig.from_pretrained(source, revision=revision), "known_environments", None) or ()
        tokenizer = load_tokenizer(config.model)
    except (ModelLoadError, OSError, ValueError):
        pass  # not on this machine
    row = load_rows(
        config.environment.model_copy(update={"train_tasks": 1}), "train", config.seed, tokenizer, config.data
    )[0]
    bridge = None
    if tokenizer is not None:
        bridge = ChatBridge(tokenizer, template_kwargs=config.model.chat_template_kwargs)
    reader = Reader(known, NativeCalls.of(bridge) if bridge is not None and config.model.native_calls else None)
    env = RolloutRunner(agent=None, tokenizer=tokenizer, num_rollouts=1).environment(row)  # type: ignore[arg-type]
    with contextlib.suppress(PromptSeen):
        env.run_trial(task_data_list=[row.task_data], agent=reader, num_rollouts=1)
    if bridge is not None:
        return bridge.prompt_text(reader.messages, reader.tools)
    said = "\n".join(_message(m) for m in reader.messages)
    return f"({config.model.base} is not on this machine, so its chat template is not applied)\n{said}"


def _message(message: Mapping[str, Any]) -> str:
    return f"[{message.get('role')}]\n{message.get('content', '')}"


def main(arguments: Sequence[str]) -> int:
    """Print the prompt. 1: it cannot be made, with one sentence on standard error."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from ...configs import load_config
    from ..launch.life import one_sentence

    try:
        print(first_prompt(load_config(arguments[0])))
    except Exception as problem:  # whatever a model, a template or an environment raises
        print(one_sentence(problem), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
