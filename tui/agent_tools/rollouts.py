"""Tools for rollouts: lists, groups, texts, the arithmetic of reward and advantage, tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Annotated, Literal

from pydantic import Field

from ...engine.runs.read.groups import GROUP_SORTS, GroupRow
from ...engine.runs.search.filters import HELP
from ...engine.runs.search.query import Query
from ...engine.runs.types import (
    AdvantageFormula,
    AdvantageTerm,
    RewardBreakdown,
    TokenArrays,
    Trajectory,
    TrajectoryRecord,
    TrajectoryRow,
    Use,
)
from ..advantage import equation
from ..cli.output import json_line
from ..plain import read_whole
from .answers import TEXT, ToolAnswer, page, visible
from .workspace import Limit, Offset, Rollout, Run, ToolError, Workspace, notes, number

Filter = Annotated[str, Field(description=f"A condition such as `reward<0.2 and not correct`. {HELP}")]
Search = Annotated[str, Field(description='Words, "phrases", begin*, -without, observation:word.')]
Part = Literal["prompt", "text", "thought", "calls", "observation", "answer", "expected", "task", "error"]
Turn = Annotated[int, Field(ge=0, description="Used for text, thought, calls and observation.")]
PART = 5_000
"""Characters that `read_text` returns at once."""


@dataclass(frozen=True)
class Read:
    """A rollout: its row in the list, and a page of its turns. turns: how many it has."""

    row: TrajectoryRow
    trajectory: Trajectory
    turns: int
    tools: Sequence[str]
    note: str | None


@dataclass(frozen=True)
class Passage:
    """A part of a long text. characters: the length of the whole."""

    text: str
    characters: int


@dataclass(frozen=True)
class Peer:
    """A rollout of the same group."""

    n: int
    id: str
    reward: float | None
    advantage: float | None


@dataclass(frozen=True)
class Explained:
    """The reward by turn and component (contribution = weight × normalised value), and the advantage by its formula.

    equation: the formula of the first turn with its numbers. recomputed: GRPO's comparison, if no advantage was
    recorded. uses: by updates. not_recorded: with the reason.
    """

    reward: float | None
    breakdown: RewardBreakdown | None
    advantage: float | None
    step_advantages: Sequence[float]
    equation: Sequence[str]
    formula: AdvantageFormula | None
    recomputed: AdvantageTerm | None
    group: Sequence[Peer]
    uses: Sequence[Use]
    not_recorded: Mapping[str, str]


@dataclass(frozen=True)
class Token:
    """One token. agent: whether the loss sees it. logprob, and trainer, reference and entropy of overlays: in nats."""

    at: int
    id: int
    text: str
    turn: int
    agent: bool
    logprob: float
    advantage: float | None
    overlays: Mapping[str, float]


class RolloutTools(Workspace):
    """Tools that read the rollouts of one run."""

    def query_rollouts(
        self,
        run: Run,
        filter: Filter = "",
        search: Search = "",
        sort: str = "n",
        descending: bool = False,
        offset: Offset = 0,
        limit: Limit = 20,
    ) -> ToolAnswer[list[TrajectoryRow]]:
        """List the rollouts that match a filter and a full-text search, in an order: n, step, reward, advantage, …"""
        query = Query(filter, search, sort, descending)
        with self.open(run) as reader:
            filter_notes = reader.rollouts.filter_notes(filter)
            rows, after = page(reader.rollouts.page(query, offset=offset, limit=limit + 1), offset, limit)
            total = int(reader.rollouts.count(query))
            return ToolAnswer(
                untrusted=rows, next_offset=after, total=total, untrusted_notes=[*filter_notes, *notes(reader)]
            )

    def groups(
        self,
        run: Run,
        filter: Filter = "",
        sort: Annotated[str, Field(description=f"One of {', '.join(GROUP_SORTS)}.")] = "n",
        descending: bool = False,
        offset: Offset = 0,
        limit: Limit = 20,
    ) -> ToolAnswer[list[GroupRow]]:
        """List groups that contain a match, with mean and std of their rewards. A std of 0 means no gradient."""
        with self.open(run) as reader:
            found = reader.rollouts.groups(Query(filter, "", sort, descending))
            rows, after = page(found.page(offset, limit + 1), offset, limit)
            return ToolAnswer(untrusted=rows, next_offset=after, total=found.count(), untrusted_notes=notes(reader))

    def read_rollout(self, run: Run, rollout: Rollout, offset: Offset = 0) -> ToolAnswer[Read]:
        """Read one rollout: prompt, outcome, and the turns from `offset` on. read_text continues texts that are cut."""
        with self.open(run) as reader:
            whole = read_whole(reader, number(reader, rollout))
            (row,) = reader.rollouts.rows([whole.n])
            t = whole.record.trajectory
            turns, after = page(islice(t.steps, offset, None), offset)
            tools = [tool.signature for tool in t.tools]
            note = None if whole.note is None else whole.note.text
            answer = Read(row, replace(t, steps=tuple(turns), tools=()), len(t.steps), tools, note)
            return ToolAnswer(untrusted=answer, next_offset=after, untrusted_notes=notes(reader))

    def read_text(
        self, run: Run, rollout: Rollout, part: Part, turn: Turn = 0, offset: Offset = 0
    ) -> ToolAnswer[list[Passage]]:
        """Read one text of a rollout from character `offset` on, 5,000 characters at a time."""
        with self.open(run) as reader:
            text = _text(reader.bodies.trajectory(number(reader, rollout)), part, turn)
        end = offset + PART
        passage = visible(text[offset:end])
        pieces = [Passage(passage[i : i + TEXT], len(text)) for i in range(0, len(passage), TEXT)]
        return ToolAnswer(untrusted=pieces, next_offset=end if end < len(text) else None)

    def explain_reward(self, run: Run, rollout: Rollout, offset: Offset = 0) -> ToolAnswer[Explained]:
        """Explain the reward by turn (from `offset` on) and component, and the advantage within its group."""
        with self.open(run) as reader:
            whole = read_whole(reader, number(reader, rollout))
            record, breakdown, after = whole.record, whole.record.breakdown, None
            if breakdown is not None:
                steps, after = page(islice(breakdown.steps, offset, None), offset)
                breakdown = replace(breakdown, steps=tuple(steps))
            (row,) = reader.rollouts.rows([whole.n])
            answer = Explained(
                record.reward,
                breakdown,
                record.advantage,
                record.step_advantages,
                equation(whole.formula, 0, record.step_advantages[0] if record.step_advantages else record.advantage),
                whole.formula,
                whole.recomputed,
                [Peer(r.n, r.id, r.reward, r.advantage) for r in reader.rollouts.group(row.group)],
                whole.uses,
                record.unknown,
            )
            return ToolAnswer(untrusted=answer, next_offset=after, untrusted_notes=notes(reader))

    def tokens(self, run: Run, rollout: Rollout, offset: Offset = 0, limit: Limit = 100) -> ToolAnswer[list[Token]]:
        """List tokens of a rollout with mask, log-prob, advantage and the values of the trainer."""
        with self.open(run) as reader:
            arrays = reader.bodies.tokens(number(reader, rollout))
            if arrays is None:
                raise ToolError("the tokens of this rollout were not recorded")
            positions = range(offset, min(len(arrays), offset + limit + 1))
            texts = reader.bodies.token_texts([arrays.token_ids[i] for i in positions])
            found, after = page((_token(arrays, i, t) for i, t in zip(positions, texts, strict=True)), offset, limit)
            return ToolAnswer(untrusted=found, next_offset=after, total=len(arrays))


def _text(record: TrajectoryRecord, part: Part, turn: int) -> str:
    t = record.trajectory
    if part == "prompt":
        return "\n\n".join(f"[{m.role}] {m.text}" for m in t.messages) or t.prompt
    if part == "task":
        return json_line(t.task)
    if part in ("answer", "expected", "error"):
        return str(getattr(t, part) or "")
    if turn >= len(t.steps):
        raise ToolError(f"this rollout has {len(t.steps)} turns, numbered from 0")
    step = t.steps[turn]
    return json_line(step.calls) if part == "calls" else str(getattr(step, part))


def _token(arrays: TokenArrays[memoryview], i: int, text: str) -> Token:
    advantage = None if arrays.advantages is None else arrays.advantages[i]
    overlays = {name: values[i] for name, values in arrays.overlays.items()}
    mask = bool(arrays.agent_mask[i])
    return Token(i, arrays.token_ids[i], text, arrays.turn[i], mask, arrays.logprobs[i], advantage, overlays)
