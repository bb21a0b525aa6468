"""Initial pass rates for a training run with `data.sampler: difficulty`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import cast

from ...configs.schema import RunConfig
from ...envs.agent import Message
from ...envs.base import Env, env_name
from ...envs.content import text_of
from ...envs.seeds import task_id
from ...envs.trajectory import StopReason
from ..record.step_recorder import StepRecorder
from ..rollouts.difficulty import Difficulty, Outcome, PassRatesError
from ..rollouts.prompts import prompt_of
from ..rollouts.runner import Row
from ..runs.paths import DATABASE
from ..runs.read.reader import RunReader
from ..runs.search.query import Query
from ..runs.types import TrajectoryRow
from .env_trainer import GRPOEnvTrainer
from .resumable import StatePart

MARKS = re.compile(r"<\|[^|<>]{1,40}\|>|</?s>|\[/?INST\]|<(?:start|end)_of_turn>")
"""The separators of messages in the chat templates of common models."""
FAILED = (StopReason.ERROR, StopReason.TIMEOUT)
PAGE = 500


def draw_by_difficulty(
    trainer: GRPOEnvTrainer, rows: Sequence[Row], config: RunConfig, run_dir: Path, recorder: StepRecorder
) -> None:
    """Let the trainer draw prompts by pass rate, starting with those of a recorded run. Raises PassRatesError."""
    environments = {row.key: cast(Env, trainer.runner.environment(row)) for row in rows}
    ids = [task_id(env_name(environments[row.key]), row.task_data) for row in rows]
    difficulty = Difficulty(ids, config.seed)
    if (run := config.data.pass_rates) is not None:
        path = Path(run).expanduser()
        folder = path if path.exists() else run_dir.parent / run
        if (folder / DATABASE).is_file():
            outcomes = recorded_outcomes(folder)
        else:
            questions = (_question_of(environments[row.key], row, trainer.agent) for row in rows)
            outcomes = outcomes_of_dump(folder, dict(zip(ids, questions, strict=True)))
        known = difficulty.begin(run, outcomes)
        recorder.event("phase", f"started with the pass rates of {run}, which has {known:.0%} of the prompts")
    trainer.pipeline.difficulty = difficulty
    trainer.state_parts.append(StatePart(difficulty.save, difficulty.load))


def recorded_outcomes(run: Path) -> list[list[Outcome]]:
    """Return the outcomes of each step of a training run, in order. Raises PassRatesError if there are none."""
    with RunReader(run) as reader:
        found = [r for r in _rows(reader, "split:train") if r.correct is not None and r.stop_reason not in FAILED]
    if not found:
        raise PassRatesError(f"data.pass_rates: {run} has no rollouts with a known verdict")
    return [[(r.prompt_id, r.correct is True) for r in rows] for _, rows in groupby(found, lambda r: r.step)]


def outcomes_of_dump(dump: Path, prompts: Mapping[str, str]) -> list[list[Outcome]]:
    """Return the outcomes of each step of another framework's rollouts, in order.

    prompts: the `question` of each prompt by its id. A rollout belongs to the longest question that its own prompt
    contains as whole lines. Without a known answer, rewards of 0 and 1 count as wrong and right. Raises PassRatesError
    if no outcome belongs to these prompts.
    """
    from ..imports.errors import DumpError
    from ..imports.opening import open_dump
    from ..imports.readers import open_reader

    try:
        opened = open_dump(dump, whole=True)
    except (DumpError, OSError) as problem:
        raise PassRatesError(f"data.pass_rates: {problem}") from problem
    by_last_line: dict[str, list[tuple[str, str]]] = {}
    for id_, text in prompts.items():
        if text:
            by_last_line.setdefault(text.splitlines()[-1], []).append((text, id_))
    ids: dict[str, str | None] = {}
    steps: dict[int, list[Outcome]] = {}
    with open_reader(opened.folder) as reader:
        for row in _rows(reader, ""):
            right = row.correct if row.correct is not None else {0.0: False, 1.0: True}.get(cast(float, row.reward))
            if right is None or row.stop_reason in FAILED or row.split == "eval":
                continue
            if row.prompt_id not in ids:
                ids[row.prompt_id] = _asked(reader.bodies.trajectory(row.n).trajectory.prompt, by_last_line)
            if (id_ := ids[row.prompt_id]) is not None:
                steps.setdefault(row.step or 0, []).append((id_, right))
    if not steps:
        raise PassRatesError(f"data.pass_rates: {dump} has no outcomes of these prompts")
    return list(steps.values())


def _question_of(environment: Env, row: Row, agent: object) -> str:
    try:
        return question(prompt_of(environment, row.task_data, agent).messages)
    except Exception:  # the environment cannot begin this task; its rollouts report the error
        return ""


def question(messages: Sequence[Message]) -> str:
    """Return the text of the last user message, normalised by `_lines`."""
    of_user = [m for m in messages if m.get("role") == "user"] or list(messages)
    return _lines(text_of(of_user[-1].get("content", ""))) if of_user else ""


def _asked(prompt: str, by_last_line: Mapping[str, Sequence[tuple[str, str]]]) -> str | None:
    """Return the id of the longest text that the prompt contains."""
    lines = _lines(prompt)
    found = [
        (len(text), id_)
        for line in set(lines.splitlines())
        for text, id_ in by_last_line.get(line, ())
        if f"\n{text}\n" in f"\n{lines}\n"
    ]
    return max(found)[1] if found else None


def _lines(text: str) -> str:
    """Return the non-empty lines, with single spaces and without the marks of chat templates."""
    lines = (" ".join(line.split()) for line in MARKS.sub("\n", text).splitlines())
    return "\n".join(filter(None, lines))


def _rows(reader: RunReader, text: str) -> Iterator[TrajectoryRow]:
    read = 0
    while rows := reader.rollouts.page(Query(filter=text, sort="step"), offset=read, limit=PAGE):
        read += len(rows)
        yield from rows
