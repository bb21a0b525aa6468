"""Rows for training and evaluation, from `data.source` or the environment itself, checked before training."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ...configs.sections import DataConfig, EnvironmentConfig
from ...configs.sections.data import holds_tasks
from ...envs.base import Env
from ...envs.guard import guarded
from ...envs.loading import EnvLoadError, make_env
from .runner import DataError, EnvKey, Row, parse_row

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CHECK_SECONDS = 5.0
"""How long tasks of a file are begun as a check. Later tasks are checked only for their form."""


def load_rows(
    config: EnvironmentConfig,
    split: str,
    seed: int,
    tokenizer: PreTrainedTokenizerBase | None = None,
    data: DataConfig | None = None,
) -> list[Row]:
    """Load and check the rows of `split` (`train` or `eval`). Raises DataError.

    They come from the dataset that `data` names. Without one, the environment makes its tasks.
    """
    if data is not None and data.source is not None:
        return _rows_of_dataset(config, data, split, tokenizer)
    number = config.train_tasks if split == "train" else config.eval_tasks
    if split == "eval" and number == 0:
        return []
    try:
        env = make_env(config.class_path, config.config, tokenizer)
        tasks = env.make_tasks(split, number, seed)  # type: ignore[arg-type]
    except (EnvLoadError, ValueError) as problem:
        raise DataError(f"environment.class_path: {problem}") from problem
    except (Exception, SystemExit) as problem:  # a user's make_tasks may raise anything
        reason = f"{type(problem).__name__}: {' '.join(str(problem).split())}"
        raise DataError(f"environment.class_path: {config.class_path} made no {split} tasks ({reason})") from problem
    if not isinstance(tasks, list) or not all(isinstance(task, Mapping) for task in tasks):
        raise DataError(f"environment.class_path: make_tasks of {config.class_path} must return a list of dictionaries")
    if not tasks:
        raise DataError(f"environment.class_path: {config.class_path} made no {split} tasks")
    return [Row(config.class_path, config.config, task) for task in tasks]


def _rows_of_dataset(
    config: EnvironmentConfig, data: DataConfig, split: str, tokenizer: PreTrainedTokenizerBase | None
) -> list[Row]:
    from .sources import load_tasks

    tasks = load_tasks(data, split, config.eval_tasks)
    defaults = {"env_class_path": config.class_path, "env_config": options_of(config)}
    source = data.source if split == "train" else data.eval_source or data.source
    holds_names = holds_tasks(source)
    raw = [
        {**defaults, **task} if holds_names else {**defaults, "task_data": task, "row": task["row"]} for task in tasks
    ]
    return check_rows(raw, tokenizer, source or "", one_environment=not holds_names)


def options_of(config: EnvironmentConfig) -> dict[str, object]:
    """Return the options of a dataset's environment."""
    return {**config.config, "tools": config.tools} if config.tools else dict(config.config)


def check_rows(
    raw: Sequence[Mapping[str, object]],
    tokenizer: PreTrainedTokenizerBase | None = None,
    source: str = "dataset",
    *,
    one_environment: bool = False,
) -> list[Row]:
    """Parse rows, load each environment once, and begin each task once (for a limited time).

    raw: a row may give its number in the file as `row`. one_environment: the configuration names the environment, so
    errors about it name no row. Raises DataError with the row's number, from 1, and the reason.
    """
    rows: list[Row] = []
    environments: dict[EnvKey, Env] = {}
    until = time.monotonic() + CHECK_SECONDS
    for number, values in enumerate(raw, 1):
        where = f"{source}, row {values.get('row', number)}"
        row = parse_row(values, where)
        if row.key not in environments:
            try:
                environments[row.key] = make_env(row.env_class_path, row.env_config, tokenizer)
            except EnvLoadError as problem:
                raise DataError(str(problem) if one_environment else f"{where}: {problem}") from problem
        if time.monotonic() < until:
            env = environments[row.key]
            limit = float(getattr(env, "turn_timeout_s", 30.0))
            outcome = guarded(env.reset, row.task_data, limit)
            if outcome.error is not None:
                raise DataError(
                    f"{where}: {row.env_class_path} cannot start this task_data ({outcome.error}); it has the keys "
                    f"{', '.join(map(str, row.task_data)) or 'none'}"
                )
        rows.append(row)
    return rows
