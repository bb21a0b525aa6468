"""The user's own data: the source of the rows, and how a row becomes a prompt."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Literal

from pydantic import Field

from .base import Section


class DataConfig(Section):
    """A dataset. Each row is a prompt or a task of an environment.

    As in TRL, reward functions (`environment.reward_funcs`) get the columns of a row by name. Rows with `task_data`,
    in a JSONL file or a saved `datasets` folder, are tasks of environments. Each may name `env_class_path` and
    `env_config`, which default to `environment.class_path` and `environment.config`.
    """

    source: str | None = None
    """A JSONL, JSON, CSV or Parquet file, a saved `datasets` folder, or a hub id such as `openai/gsm8k`. null: the
    environment generates its own tasks."""
    name: str | None = None
    """The configuration of a hub dataset, such as `main`."""
    revision: str | None = None
    """A commit or tag of a hub dataset. Pin it for reproducible runs."""
    split: str = "train"
    """The training split, if the dataset has several."""
    eval_source: str | None = None
    """The source of evaluation rows. null: `source`."""
    eval_split: str | None = None
    """The evaluation split. null without `eval_source`: a tenth of the rows is held out, at most
    `environment.eval_tasks`."""
    rows: int | None = Field(default=None, ge=1)
    """Number of rows to use, from the start. null: all."""
    prompt: str | None = None
    """The prompt column, which holds text or messages. null: the first existing column of prompt, messages, question,
    problem and instruction, in upper or lower case."""
    prompt_template: str | None = None
    """A template of the user message with columns in braces, such as `"{question} Answer with a number."`. null: the
    prompt column."""
    system_prompt: str | None = None
    """The system message of every prompt."""
    answer: str | None = None
    """The column of the correct answer. Without reward functions, an answer equal to it has reward 1."""
    completions: Literal["auto", "text", "messages"] = "auto"
    """The form in which reward functions get completions. `auto`: as in TRL, text if the column `prompt` holds text and
    is used unchanged, otherwise lists of messages."""
    sampler: Literal["uniform", "difficulty"] = "uniform"
    """How to draw prompts. `uniform`: in random order, each once before any is repeated. `difficulty`: prompts with
    mixed outcomes more often, weighted by the variance p (1 − p) of the outcome (arXiv 2502.12272)."""
    pass_rates: str | None = None
    """The source of initial pass rates for `sampler: difficulty`: a run on the same prompts (its folder or id), or
    rollouts of another framework."""
    long_prompts: Literal["stop", "drop"] = "stop"
    """How to handle prompts that leave no room for an answer within `training.max_trajectory_tokens`. `stop`: stop the
    run at the start. `drop`: leave out their rows."""


def holds_tasks(source: object) -> bool:
    """Return whether a JSONL file or a saved dataset holds tasks of environments (`task_data`) instead of prompts."""
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
