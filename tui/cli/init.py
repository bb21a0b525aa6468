"""`grpo-tui init`: four questions, a commented configuration and a file of reward functions, tried at once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ...configs.model_facts import device_of
from .common import ExitCode, ask, fail, on_terminal, say
from .config import load
from .train import own

CONFIG, REWARDS = Path("grpo.yaml"), Path("rewards.py")
MODEL = "Qwen/Qwen3-0.6B"
ANSWERS = ("answer", "solution", "target", "label", "output", "ground_truth")
"""Columns that are taken for the right answers, the first that is there."""


Hardware = StrEnum("Hardware", ["cpu", "gpu"])


def init(
    model: Annotated[str | None, typer.Option(help="The model: a hub id, a folder, or builtin:tiny.")] = None,
    dataset: Annotated[str | None, typer.Option(help="The data: a file, a saved dataset or a hub id.")] = None,
    reward: Annotated[
        str | None,
        typer.Option(metavar="FUNCTION", help="Your reward function (file.py:name). Default: rewards.py is written."),
    ] = None,
    hardware: Annotated[Hardware | None, typer.Option(help="Train on cpu or gpu.")] = None,
    check: Annotated[bool, typer.Option("--check/--no-check", help="Try the result on two rollouts.")] = True,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
) -> None:
    """Start a project: ask four questions, then write a configuration and reward functions to edit.

    Writes grpo.yaml and, unless you give your own function, rewards.py to this folder, and tries both on two
    rollouts.
    """
    _check_free(CONFIG, force)
    model, dataset, reward, hardware = _ask(model, dataset, reward, hardware)
    if reward is None:
        _check_free(REWARDS, force)
    # Before a file is written. In mode sft nothing is scored, so no reward function is needed.
    mode, functions = ("sft", None) if reward is None else ("rft", [reward])
    config = load(None, None, mode, options=own(model, dataset, functions), paths=True)
    columns = json.loads(ask("grpo_tui.engine.training.previews", config, "columns", code=ExitCode.USAGE))
    rewards = config.environment.reward_funcs
    if reward is None:
        answer = next((c for c in ANSWERS if c in columns), None)
        REWARDS.write_text(reward_file(answer), encoding="utf-8")
        say(f"wrote {REWARDS}: it scores an answer. Edit it for your task")
        rewards = {f"{REWARDS}:{'quality' if answer is None else 'accuracy'}": 1.0}
    CONFIG.write_text(config_file(model, dataset, rewards, hardware), encoding="utf-8")
    say(f"wrote {CONFIG}")
    if check:
        from .dry_run import dry_run

        if code := dry_run(load(str(CONFIG), None, paths=True)):
            raise typer.Exit(code)
    say()
    say(f"train: grpo-tui train {CONFIG} · show the data: grpo-tui data show {CONFIG}")


def _check_free(path: Path, force: bool) -> None:
    if path.exists() and not force:
        fail(f"{path} already exists here; --force overwrites it", ExitCode.USAGE)


def _ask(
    model: str | None, dataset: str | None, reward: str | None, hardware: Hardware | None
) -> tuple[str, str, str | None, Hardware]:
    """Ask for the settings that no option gave. Without a terminal nothing can be asked."""
    gpu = Hardware.gpu if device_of("auto") == "cuda" else Hardware.cpu
    if not on_terminal():
        if dataset is None:
            fail("init cannot ask questions without a terminal: give --dataset (and --model, --reward)", ExitCode.USAGE)
        return MODEL if model is None else model, dataset, reward, hardware or gpu
    if model is None:
        model = typer.prompt("1 of 4 · model (a hub id or a folder)", default=MODEL)
    if dataset is None:
        dataset = typer.prompt("2 of 4 · data (a file, a saved dataset or a hub id)")
    if reward is None:
        answer = typer.prompt("3 of 4 · reward function (file.py:name; empty: write rewards.py)", default="")
        reward = answer.strip() or None
    if hardware is None:
        hardware = typer.prompt("4 of 4 · cpu or gpu", default=gpu.value, value_proc=_hardware)
    return str(model), str(dataset), reward, hardware or gpu


def _hardware(answer: str) -> Hardware:
    try:
        return Hardware(answer.strip().lower())
    except ValueError:
        raise typer.BadParameter(f"{answer!r} is neither cpu nor gpu") from None


def reward_file(answer: str | None) -> str:
    """Return a reward function to begin with: compares with the column `answer`, or asks to be written."""
    if answer is None:
        return '''"""Reward functions: they get the completions of a step as lists of messages, and return scores."""


def quality(completions, **kwargs):
    """The data has no column of correct answers: score completions here. So far, shorter is better."""
    scores = []
    for completion in completions:
        text = completion[-1]["content"]
        scores.append((1.0 - min(len(text), 400) / 400, f"{len(text)} characters"))
    return scores
'''
    return f'''"""Reward functions: they get the completions of a step as lists of messages and the columns of the data
by name, and return scores. A score can come with a sentence, which the app shows. None: it does not apply."""

import re


def last_answer(text):
    """The last number of a text, or its last line if it has no numbers."""
    numbers = re.findall(r"-?\\d[\\d,]*(?:\\.\\d+)?", text)
    return numbers[-1].replace(",", "") if numbers else text.strip().splitlines()[-1].lower() if text.strip() else ""


def accuracy(completions, {answer}, **kwargs):
    """1 if the completion ends in the correct answer."""
    scores = []
    for completion, right in zip(completions, {answer}):
        said, wanted = last_answer(completion[-1]["content"]), last_answer(str(right))
        scores.append((float(said == wanted), f"said {{said}}, right is {{wanted}}"))
    return scores
'''


def config_file(model: str, dataset: str, rewards: Mapping[str, float], hardware: Hardware) -> str:
    """Return the configuration, with the next settings to look at in comments. All other values follow from the
    model."""
    text = partial(json.dumps, ensure_ascii=False)  # a JSON string is a YAML string, whatever stands in it
    return f"""# Made by `grpo-tui init`. Learning rate, lengths, batch and precision follow from the model. Values in
# this file override them. Every key with its value and meaning: `grpo-tui config show grpo.yaml`.
mode: rft

model:
  base: {text(model)}
  # The memory it needs: grpo-tui doctor --model {model}
  device: {"cuda" if hardware is Hardware.gpu else "cpu"}

data:
  source: {text(dataset)}
  completions: messages
  # As the policy reads it: grpo-tui data show grpo.yaml
  # system_prompt: Think step by step, then answer.
  # prompt_template: "{{question}} End with only the answer."

environment:
  # Functions with TRL's signature, and their weights. The first also defines success.
  reward_funcs:
    {", ".join(f"{text(path)}: {weight}" for path, weight in rewards.items())}
"""
