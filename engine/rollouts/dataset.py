"""Dataset rows for training and evaluation: from the environment itself, a JSONL file, or a saved `datasets` folder.

Rows are checked before anything is trained: what is wrong with a row is said with its number.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...configs.errors import GrpoTuiError
from ...configs.sections import DataConfig, EnvironmentConfig
from ...envs.base import Env
from ...envs.guard import guarded_map
from ...envs.loading import EnvLoadError, canonical_config, make_env
from .runner import EnvKey, Row, RowError, parse_row

if TYPE_CHECKING:
    from datasets import Dataset  # with pandas: a second that a server which reads no dataset does not spend
    from transformers import PreTrainedTokenizerBase

CHECK_SECONDS = 5.0
"""Tasks of a file are begun once each as a check, for so long; the rest is checked for its form only."""


class DataError(GrpoTuiError, ValueError):
    """The data cannot be used; the message is one sentence for a person."""


def load_rows(
    config: EnvironmentConfig,
    split: str,
    seed: int,
    tokenizer: PreTrainedTokenizerBase | None = None,
    data: DataConfig | None = None,
) -> list[Row]:
    """The rows of `split` (`train` or `eval`), all checked. Raises DataError.

    They are those of the dataset that `data` names, or of the file of rows that the environment names; without either
    the environment makes its tasks, and one that makes none for evaluation gives none.
    """
    if data is not None and data.source is not None:
        return _rows_of_dataset(config, data, split, tokenizer)
    source = config.train_data if split == "train" else config.eval_data
    if source is not None:
        rows = check_rows(_read(source, config), tokenizer, source)
        if not rows:
            raise DataError(f"{source} has no rows")
        return rows
    number = config.train_tasks if split == "train" else config.eval_tasks
    if split == "eval" and (config.train_data is not None or number == 0):
        return []
    try:
        env = make_env(config.class_path, config.config, tokenizer)
        tasks = env.make_tasks(split, number, seed)  # type: ignore[arg-type]
    except (EnvLoadError, ValueError) as problem:
        raise DataError(f"environment.class_path: {problem}") from problem
    except Exception as problem:  # a user's own make_tasks may raise anything
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
    from .sources import SourceError, load_tasks

    try:
        tasks = load_tasks(data, split, config.eval_tasks)
    except SourceError as problem:
        raise DataError(str(problem)) from problem
    raw = [{"env_class_path": config.class_path, "env_config": options_of(config), "task_data": task} for task in tasks]
    return check_rows(raw, tokenizer, data.source or "", one_environment=True)


def options_of(config: EnvironmentConfig) -> dict[str, Any]:
    """What the environment of a dataset is made with."""
    return {**config.config, "tools": config.tools} if config.tools else dict(config.config)


def check_rows(
    raw: Sequence[Mapping[str, Any]],
    tokenizer: PreTrainedTokenizerBase | None = None,
    source: str = "dataset",
    *,
    one_environment: bool = False,
) -> list[Row]:
    """Parse rows, load each environment once, and begin each task once (for a limited time).

    one_environment: no row names one itself, so none is to blame for it.

    Raises DataError with the number of the row, counted from 1, and the reason.
    """
    rows: list[Row] = []
    environments: dict[EnvKey, Env] = {}
    until = time.monotonic() + CHECK_SECONDS
    for number, values in enumerate(raw, 1):
        where = f"{source}, row {number}"
        try:
            row = parse_row(values, where)
        except RowError as problem:
            raise DataError(str(problem)) from problem
        if row.key not in environments:
            try:
                environments[row.key] = make_env(row.env_class_path, row.env_config, tokenizer)
            except EnvLoadError as problem:
                raise DataError(str(problem) if one_environment else f"{where}: {problem}") from problem
        if time.monotonic() < until:
            env = environments[row.key]
            limit = float(getattr(env, "turn_timeout_s", 30.0))
            outcome = guarded_map(env.reset, [row.task_data], timeout_s=limit, workers=1)[0]
            if outcome.error is not None:
                raise DataError(
                    f"{where}: {row.env_class_path} cannot begin this task_data ({outcome.error}); it has the keys "
                    f"{', '.join(map(str, row.task_data)) or 'none'}"
                )
        rows.append(row)
    return rows


def to_dataset(rows: Sequence[Row]) -> Dataset:
    """Rows as the table that the trainer walks over. Configs and tasks are JSON text: a table of mappings would give
    every row the keys of all others."""
    from datasets import Dataset

    return Dataset.from_dict(
        {
            "env_class_path": [r.env_class_path for r in rows],
            "env_config": [canonical_config(r.env_config) for r in rows],
            "task_data": [json.dumps(r.task_data) for r in rows],
        }
    )


def _read(source: str, config: EnvironmentConfig) -> list[dict[str, Any]]:
    path = Path(source).expanduser()
    defaults = {"env_class_path": config.class_path, "env_config": config.config}
    if path.is_dir():
        from datasets import Dataset, load_from_disk

        try:
            table = load_from_disk(str(path))
        except Exception as problem:
            raise DataError(f"{source} is not a saved dataset: {problem}") from problem
        if not isinstance(table, Dataset):
            raise DataError(
                f"{source} holds several splits ({', '.join(map(str, table))}); name the folder of one of them"
            )
        return [{**defaults, **row} for row in table.to_list()]
    if not path.is_file():
        raise DataError(f"there is no file {source} (looked from {Path.cwd()})")
    rows = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as problem:
                raise DataError(f"{source}, line {number}: not JSON ({problem})") from problem
            if not isinstance(row, dict):
                raise DataError(f"{source}, line {number}: a row must be a JSON object, not {type(row).__name__}")
            rows.append({**defaults, **row})
    return rows
