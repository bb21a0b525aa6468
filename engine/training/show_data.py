"""`python -m grpo_tui.engine.training.show_data CONFIG ROWS`: the first rows of a dataset as the policy will read them.

A process of its own, so that the command line needs neither `datasets` nor a tokenizer. Without `--tokens` no model is
asked for, and the messages are shown as they are.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...configs.schema import RunConfig
    from ..agents.chat import ChatBridge
    from ..rollouts.prompts import Prompt

MOST_COUNTED = 2000
"""Prompts that are counted in tokens; of a longer dataset the first ones."""


def told(config: RunConfig, rows: int, tokens: bool) -> Iterator[str]:
    """Yield the lines to print. Raises SourceError, ModelLoadError, ChatTemplateError."""
    from ...configs.sections.data import holds_tasks
    from ..rollouts.sources import load_tasks

    tasks = load_tasks(config.data, "train", config.environment.eval_tasks)
    held_out = load_tasks(config.data, "eval", config.environment.eval_tasks)
    if holds_tasks(config.data.source):
        yield f"{config.data.source}: {len(tasks)} tasks of environments to train on, {len(held_out)} to evaluate on"
        yield from (json.dumps(task, ensure_ascii=False) for task in tasks[:rows])
        return
    columns = list(tasks[0]["columns"]) if tasks else []
    yield f"{config.data.source}: {len(tasks)} rows to train on, {len(held_out)} to evaluate on"
    yield f"columns for reward functions: {', '.join(columns) or 'none'}"
    form = "texts" if tasks and tasks[0]["plain"] else "lists of messages"
    yield f"reward functions get completions as {form} (data.completions)"
    read = _reading(config) if tokens else None
    for task in tasks[:rows]:
        yield ""
        if read is None:
            yield f"row {task['row']}"
            for message in task["messages"]:
                yield f"  [{message['role']}] {message['content']}"
        else:
            yield f"row {task['row']}, {read.tokens(task)} tokens"
            yield from (f"  {line}" for line in read.text(task).splitlines())
        shown = {k: v for k, v in task["columns"].items() if v is not None and str(v) not in str(task["messages"])}
        for name, value in shown.items():
            yield f"  {name} = {_short(value)}"
    if read is not None:
        yield ""
        yield from _lengths([*tasks, *held_out], read, config)


def columns(config: RunConfig) -> str:
    """Return the names of the dataset's columns as a JSON list. Raises SourceError."""
    from ..rollouts.sources import read_table

    data = config.data
    assert data.source is not None
    return json.dumps(read_table(data.source, name=data.name, split=data.split, revision=data.revision).column_names)


def _lengths(tasks: Sequence[dict[str, Any]], read: Reading, config: RunConfig) -> Iterator[str]:
    counted = {t["row"]: read.tokens(t) for t in tasks[:MOST_COUNTED]}
    if not counted:
        return
    sizes, limit, turn = list(counted.values()), config.training.max_trajectory_tokens, config.training.max_turn_tokens
    some = f" (of the first {MOST_COUNTED})" if len(tasks) > MOST_COUNTED else ""
    yield f"tokens of a prompt{some}: {min(sizes)} to {max(sizes)}, median {median(sizes):.0f}"
    over = [row for row, size in counted.items() if size >= limit]
    tight = [row for row, size in counted.items() if limit - turn < size < limit]
    if over:
        yield (
            f"{len(over)} rows leave no room for an answer within training.max_trajectory_tokens ({limit}): "
            f"{_listed(over)}; raise it, or leave them out with data.long_prompts: drop"
        )
    if tight:
        yield f"{len(tight)} rows leave less room than training.max_turn_tokens ({turn}): {_listed(tight)}"
    if not over and not tight:
        yield f"all leave room for a turn of {turn} tokens within {limit}"


def _listed(rows: Sequence[int]) -> str:
    return "row " + ", ".join(map(str, rows[:8])) + (" …" if len(rows) > 8 else "")


@dataclass(frozen=True)
class Reading:
    """How a policy reads tasks, with the tool descriptions of their environment."""

    prompt: Callable[[Mapping[str, Any]], Prompt]
    chat: ChatBridge

    def text(self, task: Mapping[str, Any]) -> str:
        prompt = self.prompt(task)
        return self.chat.prompt_text(prompt.messages, prompt.tools)

    def tokens(self, task: Mapping[str, Any]) -> int:
        prompt = self.prompt(task)
        return len(self.chat.prompt(prompt.messages, prompt.tools))


def _reading(config: RunConfig) -> Reading:
    """Raises ModelLoadError, ChatTemplateError, EnvLoadError."""
    from ...envs.loading import make_env
    from ..rollouts.dataset import options_of
    from ..rollouts.prompts import prompt_of
    from .first_prompt import reader

    policy, chat = reader(config.model)
    env = make_env(config.environment.class_path, options_of(config.environment), chat.tokenizer)
    return Reading(lambda task: prompt_of(env, task, policy), chat)


def _short(value: object) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 100 else f"{text[:97]}..."


def main(arguments: Sequence[str]) -> int:
    """Print the rows. Returns 1 with one sentence on standard error if they are unreadable."""
    parser = argparse.ArgumentParser(prog="python -m grpo_tui.engine.training.show_data", description=__doc__)
    parser.add_argument("config")
    parser.add_argument("rows", type=int)
    parser.add_argument("--columns", action="store_true", help="print the columns only, as a list in JSON")
    parser.add_argument("--tokens", action="store_true", help="count in tokens of the configured model")
    given = parser.parse_args(arguments)
    from ...configs.loading import load_config
    from ..launch.outcome import one_sentence

    try:
        config = load_config(given.config)
        for line in [columns(config)] if given.columns else told(config, given.rows, given.tokens):
            print(line)
    except Exception as problem:  # whatever a model, a template or a hub raises
        print(one_sentence(problem), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    sys.exit(main(sys.argv[1:]))
