"""Read users' datasets (files, saved folders and hub ids) as tasks.

A prompt becomes a task of `envs.dataset.DatasetEnv`, `{"messages": [...], "columns": {...}, "row": n, "plain": bool}`:
the prompt, the row's columns for reward functions, its number from 1, and whether functions get texts
(`data.completions`). A row with `task_data` is used unchanged, with its number.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Mapping, Sequence
from datetime import date, time
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

from datasets import Dataset, DatasetDict, load_dataset, load_from_disk
from datasets.utils.logging import disable_progress_bar, set_verbosity

from ...configs.checks import FILES, is_path
from ...configs.sections import DataConfig
from ...configs.sections.data import holds_tasks
from ...envs.user_code import one_line
from .files import json_rows, kind_of, rows_of_file
from .runner import DataError

logger = logging.getLogger(__name__)

PROMPT_COLUMNS = ("prompt", "messages", "question", "problem", "instruction")
ROLES = ("system", "user", "assistant")
TRAIN = "train"
"""The split of a source without splits."""
HOLD_OUT = 10
"""One row in this many is held out for evaluation if the configuration names no split for it."""

_FIELD = re.compile(r"\{\{|\}\}|\{([A-Za-z_]\w*)\}")

Task = dict[str, Any]
"""A row as a task: JSON, as stored in the record."""


def load_tasks(config: DataConfig, split: str, eval_tasks: int) -> list[Task]:
    """Load the tasks of `split` (`train` or `eval`). eval_tasks: the most tasks for evaluation.

    Raises DataError.
    """
    assert config.source is not None
    if split == "eval" and eval_tasks == 0:
        return []
    separate = config.eval_source is not None or config.eval_split is not None
    if split == "eval" and separate:
        split = config.eval_split or (config.split if config.eval_source is None else TRAIN)
        return read_tasks(config, config.eval_source or config.source, split)[:eval_tasks]
    tasks = read_tasks(config, config.source, config.split)[: config.rows]
    if separate or eval_tasks == 0:
        return tasks
    held_out = _held_out(tasks, min(eval_tasks, len(tasks) // HOLD_OUT))
    side = [task for task in tasks if (_prompt_key(task) in held_out) == (split == "eval")]
    return side[:eval_tasks] if split == "eval" else side


def read_tasks(config: DataConfig, source: str, split: str) -> list[Task]:
    """Return all rows of a source as tasks. Raises DataError."""
    if holds_tasks(source):
        return _tasks_of_environments(config, source, split)
    rows = read_rows(config, source, split)
    if len(rows) == 0:
        raise DataError(f"{source} has no rows")
    maker = TaskMaker(config, source, list(rows[0]))
    return [maker.task(row, number) for number, row in enumerate(rows, 1)]


def _tasks_of_environments(config: DataConfig, source: str, split: str) -> list[Task]:
    path = Path(source).expanduser()
    if path.is_dir():
        rows = enumerate(read_rows(config, source, split), 1)
    else:
        _check_plain(config, source, split)
        rows = json_rows(source, path)
    return [{**row, "row": number} for number, row in rows]


def read_rows(config: DataConfig, source: str, split: str) -> Sequence[Mapping[str, object]]:
    """Read a file, a saved folder or a hub dataset. Each row has all columns. Raises DataError."""
    disable_progress_bar()  # keep it out of log files
    set_verbosity(logging.CRITICAL)  # the DataError reports problems in one sentence
    if not source.strip():
        raise DataError("data.source is empty: name a file, a saved dataset or a hub id such as openai/gsm8k")
    path = Path(source).expanduser()
    if path.is_dir() and not any((path / name).is_file() for name in ("state.json", "dataset_dict.json")):
        raise DataError(
            f"the folder {source} is not a saved dataset (`Dataset.save_to_disk`): name a file in it, ending in "
            f"{', '.join(FILES)}"
        )
    if path.exists() and path.is_file() and path.suffix not in FILES:
        raise DataError(f"{source} ends in {path.suffix or 'nothing'}; files that can be read: {', '.join(FILES)}")
    if is_path(source) and not path.exists():
        raise DataError(f"there is no file {source} (looked from {Path.cwd()})")
    if path.is_file():
        _check_plain(config, source, split)
        return rows_of_file(source, path)
    try:
        revision = config.revision
        found = load_from_disk(str(path)) if path.is_dir() else load_dataset(source, config.name, revision=revision)
    except Exception as problem:  # pyarrow, fsspec and the hub's client raise various errors
        raise DataError(_explain(source, path, problem)) from problem
    if isinstance(found, Dataset):
        _check_plain(config, source, split)
    elif not isinstance(found, DatasetDict) or split not in found:
        raise DataError(f"{source} has no split {split}; it has {', '.join(map(str, found)) or 'none'}")
    else:
        found = found[split]
    return cast("Sequence[Mapping[str, object]]", found)


def _check_plain(config: DataConfig, source: str, split: str) -> None:
    """Raise DataError for a split, configuration or revision of a file, which has none. If `data.source` is a hub
    dataset, name and revision belong to it, so a file in `data.eval_source` may have them."""
    if split != TRAIN:
        raise DataError(
            f"{source} has no splits, but {split} is requested: leave data.split and data.eval_split out (a tenth of "
            "the rows is held out), or name a separate file in data.eval_source"
        )
    for key in ("name", "revision"):
        if getattr(config, key) is not None and source == config.source:
            raise DataError(f"data.{key} is only for hub datasets, and {source} is not one: leave it out")


class TaskMaker:
    """Makes tasks from the rows of one source. Raises DataError for missing columns."""

    def __init__(self, config: DataConfig, source: str, columns: Sequence[str]) -> None:
        self.config, self.source, self.columns = config, source, list(columns)
        self.template = config.prompt_template
        has = f"{source} has the columns {', '.join(self.columns)}"
        if self.template is not None:
            for name in _fields(self.template):
                if name not in self.columns:
                    raise DataError(
                        f"data.prompt_template names {{{name}}}, but {has}; write {{{{{name}}}}} for literal braces"
                    )
            if not _fields(self.template):
                raise DataError(f"data.prompt_template names no column, so all prompts would be equal; {has}")
        known = {c.lower(): c for c in self.columns} | {c: c for c in self.columns}
        column = config.prompt or next((known[name] for name in PROMPT_COLUMNS if name in known), None)
        if self.template is None and (column is None or column not in self.columns):
            missing = f"no column {config.prompt}" if config.prompt else "no column of prompts"
            raise DataError(f"{has}, and {missing}: {self._advice()}")
        self.prompt = column or ""
        self._kinds: dict[str, tuple[str, int]] = {}
        if config.answer is not None and config.answer not in self.columns:
            raise DataError(f"{has}, and no column {config.answer} for right answers: name it in data.answer")

    def _advice(self) -> str:
        """Suggest a correction for a source without prompts."""
        only = self.columns[0] if len(self.columns) == 1 else ""
        separator = next((name for mark, name in ((";", "semicolons"), ("\t", "tabs")) if mark in only), None)
        if separator is not None:
            return f"its cells are separated by {separator}, not by commas"
        if only and self.source.endswith(".json"):
            return f"name it in data.prompt, or, if its rows are in {only}, write only that list"
        return "name it in data.prompt"

    def task(self, row: Mapping[str, object], number: int) -> Task:
        """Return row `number` (from 1) as a task. Raises DataError with its number."""
        where = f"{self.source}, row {number}"
        self._check_types(row, number, where)
        messages, from_text = self._messages(row, where)
        as_it_is = from_text and self.template is None and self.config.system_prompt is None
        form = self.config.completions
        plain = form == "text" or (form == "auto" and as_it_is and self.prompt == "prompt")
        if self.config.system_prompt is not None:
            if messages[0]["role"] == "system":
                raise DataError(f"{where}: the prompt already has a system message; leave data.system_prompt out")
            messages = [{"role": "system", "content": self.config.system_prompt}, *messages]
        task: Task = {
            "messages": messages,
            "row": number,
            "columns": {name: _plain(value, where, name) for name, value in row.items() if name != "prompt"},
            "plain": plain,
        }
        if self.config.answer is not None:
            answer = _written(row[self.config.answer])
            if not answer.strip():
                raise DataError(f"{where}: {self.config.answer} is empty, and no answer could be right")
            task["answer"] = answer
        return task

    def _check_types(self, row: Mapping[str, object], number: int, where: str) -> None:
        """Refuse a column that is text in one row and a number in another: it would break a reward function later."""
        for column, value in row.items():
            kind = _json_kind(value)
            known = self._kinds.setdefault(column, (kind, number)) if kind else (kind, number)
            if known[0] != kind:
                raise DataError(
                    f"{where}: {column} is {kind}, but {known[0]} in row {known[1]}; a column has one type in all rows"
                )

    def _messages(self, row: Mapping[str, object], where: str) -> tuple[list[dict[str, str]], bool]:
        """Return the prompt as messages, and whether it was text."""
        if self.template is not None:
            prompt: object = _filled(self.template, row)
        else:
            prompt = row[self.prompt]
        if isinstance(prompt, str):
            if not prompt.strip():
                raise DataError(f"{where}: {self.prompt or 'the prompt'} is empty")
            return [{"role": "user", "content": prompt}], True
        if prompt == []:
            raise DataError(f"{where}: {self.prompt} is empty")
        if not isinstance(prompt, list):
            raise DataError(
                f"{where}: {self.prompt} must be text or a list of messages, not {kind_of(prompt)}; data.prompt names "
                "another column"
            )
        messages: list[dict[str, str]] = []
        for i, message in enumerate(prompt, 1):
            role, content = (message.get("role"), message.get("content")) if isinstance(message, Mapping) else (0, 0)
            content = _joined(content)
            if role not in ROLES or not isinstance(content, str):
                raise DataError(
                    f"{where}: message {i} of {self.prompt} must be {{role: {' or '.join(ROLES)}, content: text}}"
                )
            messages.append({"role": str(role), "content": content})
        if messages[-1]["role"] == "assistant":
            raise DataError(f"{where}: the last message of {self.prompt} is the assistant's: nothing is left to answer")
        if not any(m["content"].strip() for m in messages):
            raise DataError(f"{where}: {self.prompt} is empty")
        return messages, False


def _joined(content: object) -> object:
    """Join content whose parts are all text. Other content stays unchanged."""
    if not isinstance(content, list) or not content:
        return content
    parts = [part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None for part in content]
    texts = [part for part in parts if isinstance(part, str)]
    return "".join(texts) if len(texts) == len(content) else content


def _fields(template: str) -> list[str]:
    return [m.group(1) for m in _FIELD.finditer(template) if m.group(1)]


def _filled(template: str, row: Mapping[str, object]) -> str:
    """Replace `{column}` by the row's value. `{{` and `}}` give braces, and other braces stay."""

    def value(match: re.Match[str]) -> str:
        if match.group(1) is None:
            return match.group(0)[0]
        return _written(row[match.group(1)])

    return _FIELD.sub(value, template)


def _written(value: object) -> str:
    """Format a value as people write it: whole numbers without the point that a table adds if other rows have one."""
    if isinstance(value, (float, Decimal)) and value % 1 == 0:
        return str(int(value))
    return "" if value is None or value != value else str(value)  # NaN stands for a missing value in Parquet


def _plain(value: Any, where: str, column: str) -> object:
    """Return a column's value as JSON. Raises DataError for values without a JSON form, such as pictures."""
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, Decimal):
        return int(value) if value % 1 == 0 else float(value)
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(k): _plain(v, where, column) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v, where, column) for v in value]
    if hasattr(value, "tolist"):
        return value.tolist()
    raise DataError(
        f"{where}: the column {column} contains {kind_of(value)}, which is neither text nor numbers; drop it"
    )


def _prompt_key(task: Task) -> str:
    text = json.dumps(task["messages" if "messages" in task else "task_data"], ensure_ascii=False)
    return hashlib.sha1(text.encode("utf-8", "replace")).hexdigest()


def _held_out(tasks: Sequence[Task], number: int) -> set[str]:
    """Return keys of the prompts held out, at most half of them: those with the smallest hashes, so adding rows changes
    few of them."""
    keys = sorted({_prompt_key(task) for task in tasks})
    return set(keys[: min(number, len(keys) // 2)])


def _explain(source: str, path: Path, problem: Exception) -> str:
    reason = one_line(problem)[:200]
    if isinstance(problem, IndexError):  # from `load_from_disk`
        return f"{source} has no rows"
    if path.is_dir():
        return f"{source} cannot be read as a saved dataset: {reason}"
    if "Config name is missing" in reason or "BuilderConfig" in reason:
        return f"the dataset {source} needs data.name, its configuration: {reason}"
    return (
        f"the dataset {source} is not available from the hub, and there is no such file ({reason}); check its name and "
        "the network, or name a file"
    )


def _json_kind(value: Any) -> str:
    """Name the kind of a value; empty for None, which any column may hold."""
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, (int, float)):
        return "a number"
    return "" if value is None else {str: "text", list: "a list", dict: "an object"}.get(type(value), "something else")
