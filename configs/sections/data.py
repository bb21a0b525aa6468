"""The user's own data: where the rows are, and how a row becomes a prompt."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Literal

from pydantic import Field

from .base import Section


class DataConfig(Section):
    """A dataset: each row is a prompt, or a task of an environment.

    Reward functions (`environment.reward_funcs`) get the columns of a row by name, as in TRL. Rows with `task_data`,
    in a JSONL file or a saved `datasets` folder, are tasks of environments. Each may name `env_class_path` and
    `env_config`, which default to `environment.class_path` and `environment.config`.
    """

    source: str | None = None
    """A JSONL, JSON, CSV or Parquet file, a saved `datasets` folder, or a hub id such as `openai/gsm8k`. null: the
    environment makes its own tasks."""
    name: str | None = None
    """Which configuration of a hub dataset, such as `main`."""
    revision: str | None = None
    """A commit or tag of a hub dataset; pin it for repeatable runs."""
    split: str = "train"
    """The split to train on, where there are several."""
    eval_source: str | None = None
    """The source of evaluations. null: `source`."""
    eval_split: str | None = None
    """The split of evaluations. null without `eval_source`: hold out a tenth of the rows, at most
    `environment.eval_tasks`."""
    rows: int | None = Field(default=None, ge=1)
    """How many of the first rows to take. null: all."""
    prompt: str | None = None
    """The column of the prompt, as text or as messages; null: the first of prompt, messages, question, problem and
    instruction that is there."""
    prompt_template: str | None = None
    """The user's message with columns in braces, such as `"{question} Answer with a number."`; null: the prompt."""
    system_prompt: str | None = None
    """The system message of every prompt."""
    answer: str | None = None
    """The column of the right answer: without reward functions, an answer equal to it earns 1."""
    completions: Literal["auto", "text", "messages"] = "auto"
    """What reward functions get. `auto`: texts where `prompt` holds texts that are read as they are, otherwise lists of
    messages, as in TRL."""
    sampler: Literal["uniform", "difficulty"] = "uniform"
    """How prompts are drawn. `uniform`: each once, in random order, before any comes again. `difficulty`: those that
    the policy solves sometimes more often, by the variance p (1 − p) of their outcome (arXiv 2502.12272)."""
    pass_rates: str | None = None
    """`difficulty`: a run of the same prompts, by its folder or its id, or rollouts of another framework. The pass
    rates begin with these."""
    long_prompts: Literal["stop", "drop"] = "stop"
    """A prompt that leaves no room for an answer within `training.max_trajectory_tokens` stops the run at its start
    (`stop`), or its row is left out (`drop`)."""


def holds_tasks(source: object) -> bool:
    """Whether a JSONL file or a saved dataset holds tasks of environments (`task_data`) in place of prompts."""
    if not isinstance(source, str):
        return False
    path = Path(os.path.expanduser(source))
    try:
        if path.suffix == ".jsonl":
            with path.open(encoding="utf-8-sig") as lines:
                first = json.loads(next((line for line in lines if line.strip()), "null"))
        else:
            folder = next((f for f in (path, *path.iterdir()) if (f / "dataset_info.json").is_file()), path)
            first = json.loads((folder / "dataset_info.json").read_text(encoding="utf-8"))["features"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return isinstance(first, dict) and "task_data" in first
