"""`python -m grpo_tui.engine.training.previews CONFIG WHAT`: answers for the command line before a run exists.

| what | |
|---|---|
| `code` | whether tools, reward functions and their columns exist. Loads no model |
| `prompt` | the first prompt, as the policy will read it. Downloads nothing |
| `columns` | the columns of the dataset, as a list in JSON |
| `rows` | the first rows of the dataset as they are, or with `--tokens` as the policy will read them |

Runs in a separate process, because it runs the user's code, and the command line should not load torch or `datasets`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from ...configs.errors import count
from ...configs.schema import RunConfig
from ...configs.sections.model import ModelConfig

if TYPE_CHECKING:
    from ..agents.chat import ChatBridge
    from ..agents.scripted import ScriptedAgent
    from ..rollouts.prompts import Prompt

ROWS_CHECKED = 64
"""Rows of a dataset whose columns are inspected."""
MOST_COUNTED = 2000
"""Prompts whose tokens are counted, from the start of the dataset."""


def check_code(config: RunConfig) -> None:
    """Load the tools and reward functions of a run, and check the functions against the columns of the data.

    Raises EnvLoadError, DataError or RewardFunctionError.
    """
    from ...envs.function_tools import load_tools
    from ..rollouts.dataset import load_rows
    from ..rollouts.judging import make_judge

    environment, data = config.environment, config.data
    if data.source is not None:
        load_tools(environment.tools)
    few = environment.model_copy(update={"train_tasks": 1, "eval_tasks": min(environment.eval_tasks, 1)})
    head = data.model_copy(update={"rows": min(data.rows or ROWS_CHECKED, ROWS_CHECKED)})
    if environment.reward_funcs:
        make_judge(environment, [])  # before loading the data, which may take longer
        make_judge(environment, load_rows(few, "train", config.seed, None, head))


def reader(config: ModelConfig) -> ScriptedAgent:
    """Return an agent that reads prompts as a model does, without loading weights. Raises ModelLoadError,
    ChatTemplateError."""
    from ..agents.scripted import ScriptedAgent
    from ..policy.sources import load_known, load_tokenizer

    tokenizer, template = load_tokenizer(config), config.chat_template_kwargs
    known = getattr(load_known(config), "known_environments", None) or ()
    native = config.native_calls
    return ScriptedAgent([], tokenizer, knows=known.__contains__, template_kwargs=template, native_calls=native)


def first_prompt(config: RunConfig) -> str:
    """Return the prompt of the first training task, in the chat template if the model is on this machine.

    Raises DataError, EnvLoadError, and any error of the environment.
    """
    from ...envs.loading import make_env
    from ..policy.sources import ModelLoadError
    from ..rollouts.dataset import load_rows
    from ..rollouts.prompts import prompt_of

    try:
        policy = reader(config.model)
    except ModelLoadError:
        if Path(config.model.base).expanduser().is_dir():
            raise
        policy = None  # not on this machine
    tokenizer = None if policy is None else policy.chat.tokenizer
    environment = config.environment.model_copy(update={"train_tasks": 1})
    row = load_rows(environment, "train", config.seed, tokenizer, config.data)[0]
    prompt = prompt_of(make_env(row.env_class_path, row.env_config, tokenizer), row.task_data, policy)
    if policy is not None:
        return policy.chat.prompt_text(prompt.messages, prompt.tools)
    messages = "\n".join(f"[{m.get('role')}]\n{m.get('content', '')}" for m in prompt.messages)
    return f"({config.model.base} is not on this machine, so its chat template is not applied)\n{messages}"


def columns(config: RunConfig) -> str:
    """Return the names of the dataset's columns as a JSON list. Raises DataError."""
    from ..rollouts.sources import read_rows

    assert config.data.source is not None
    rows = read_rows(config.data, config.data.source, config.data.split)
    return json.dumps(list(rows[0]) if len(rows) else [])


def rows_of(config: RunConfig, rows: int, tokens: bool) -> Iterator[str]:
    """Yield the lines about the dataset and its first rows. Raises DataError, and with `tokens` ModelLoadError,
    ChatTemplateError, EnvLoadError."""
    from ...configs.sections.data import holds_tasks
    from ...envs.loading import make_env
    from ..rollouts.dataset import options_of
    from ..rollouts.prompts import prompt_of
    from ..rollouts.sources import load_tasks

    tasks = load_tasks(config.data, "train", config.environment.eval_tasks)
    held_out = load_tasks(config.data, "eval", config.environment.eval_tasks)
    if holds_tasks(config.data.source):
        yield f"{config.data.source}: {len(tasks)} environment tasks to train on, {len(held_out)} to evaluate on"
        yield from (json.dumps(task, ensure_ascii=False) for task in tasks[:rows])
        return
    names = list(tasks[0]["columns"]) if tasks else []
    yield f"{config.data.source}: {count(len(tasks), 'row')} to train on, {len(held_out)} to evaluate on"
    yield f"columns for reward functions: {', '.join(names) or 'none'}"
    form = "texts" if tasks and tasks[0]["plain"] else "lists of messages"
    yield f"reward functions get completions as {form} (data.completions)"
    policy = reader(config.model) if tokens else None
    chat = None if policy is None else policy.chat
    env = chat and make_env(config.environment.class_path, options_of(config.environment), chat.tokenizer)
    for task in tasks[:rows]:
        yield ""
        if chat is None:
            yield f"row {task['row']}"
            yield from (f"  [{message['role']}] {message['content']}" for message in task["messages"])
        else:
            prompt = prompt_of(env, task, policy)
            yield f"row {task['row']}, {len(chat.prompt(prompt.messages, prompt.tools))} tokens"
            yield from (f"  {line}" for line in chat.prompt_text(prompt.messages, prompt.tools).splitlines())
        printed = [task["messages"], *(message["content"] for message in task["messages"])]
        for name, value in task["columns"].items():
            if value is not None and value not in printed and f"{{{name}}}" not in (config.data.prompt_template or ""):
                text = " ".join(str(value).split())
                yield f"  {name} = {text if len(text) <= 100 else f'{text[:97]}...'}"
    if chat is not None:
        yield ""
        eval_source = config.data.eval_source or config.data.eval_split  # its own rows, also numbered from 1
        named_tasks = [(str(task["row"]), task) for task in tasks]
        named_tasks += [
            (f"{task['row']} of {eval_source}" if eval_source else str(task["row"]), task) for task in held_out
        ]
        prompts = [(row, prompt_of(env, task, policy)) for row, task in named_tasks[:MOST_COUNTED]]
        counted = [(row, _tokens(chat, prompt, row)) for row, prompt in prompts]
        yield from _lengths(counted, len(tasks) + len(held_out) > MOST_COUNTED, config)


def _tokens(chat: ChatBridge, prompt: Prompt, row: str) -> int:
    """Count the tokens of a row's prompt. Raises DataError if the template rejects it."""
    from ..agents.chat import ChatTemplateError
    from ..rollouts.runner import DataError

    try:
        return len(chat.prompt(prompt.messages, prompt.tools))
    except ChatTemplateError as problem:
        raise DataError(f"row {row} of the data: {problem}") from problem


def _lengths(counted: Sequence[tuple[str, int]], some_only: bool, config: RunConfig) -> Iterator[str]:
    """Report how much room prompts leave. counted: rows and the tokens of their prompts."""
    if not counted:
        return
    sizes = [size for _, size in counted]
    limit, turn = config.training.max_trajectory_tokens, config.training.max_turn_tokens
    some = f" (of the first {MOST_COUNTED})" if some_only else ""
    yield f"tokens of a prompt{some}: {min(sizes)} to {max(sizes)}, median {median(sizes):.0f}"
    over = [row for row, size in counted if size >= limit]
    tight = [row for row, size in counted if limit - turn < size < limit]
    if over:
        yield (
            f"{count(len(over), 'row leaves', 'rows leave')} no room for an answer within "
            f"training.max_trajectory_tokens ({limit}): "
            f"{_listed(over)}; raise it, or leave them out with data.long_prompts: drop"
        )
    if tight:
        few = f"{count(len(tight), 'row leaves', 'rows leave')} less room than training.max_turn_tokens ({turn}): "
        yield few + _listed(tight)
    if not over and not tight:
        yield f"all leave room for a turn of {turn} tokens within {limit}"


def _listed(rows: Sequence[str]) -> str:
    return "row " + ", ".join(rows[:8]) + (" …" if len(rows) > 8 else "")


def main(arguments: Sequence[str]) -> None:
    """Print the answer."""
    parser = argparse.ArgumentParser(prog="python -m grpo_tui.engine.training.previews", description=__doc__)
    parser.add_argument("config")
    parser.add_argument("what", choices=("code", "prompt", "columns", "rows"))
    parser.add_argument("rows", type=int, nargs="?", default=0)
    parser.add_argument("--tokens", action="store_true", help="count in tokens of the configured model")
    args = parser.parse_args(arguments)
    if args.what == "prompt":
        os.environ["HF_HUB_OFFLINE"] = "1"
    from ...configs.loading import load_config
    from ..launch.outcome import told_in_one_sentence

    with told_in_one_sentence():
        config = load_config(args.config)
        if args.what == "code":
            check_code(config)
        elif args.what == "prompt":
            print(first_prompt(config))
        elif args.what == "columns":
            print(columns(config))
        else:
            for line in rows_of(config, args.rows, args.tokens):
                print(line)


if __name__ == "__main__":
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    main(sys.argv[1:])
