"""Adapt an environment of `verifiers`: its rows become tasks, and its messages become observations."""

from __future__ import annotations

import hashlib
import logging
import random
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

from ...agent import Message
from ...base import EnvOptions, Split, StepResult, Verdict
from ...calls import ToolCall, means_call, parse_calls
from ...content import text_of
from ...explain import OPTIONAL_CALLS, explain_calls
from ...guard import wait
from ...multi_turn import MultiTurnEnv
from ...tools import tool_of_schema
from ...trajectory import Call
from ...user_code import one_line
from .exchange import Completion, RolloutExchange, client
from .library import TOTAL, limitations, load, plain_messages, rubric_scores, rubric_weights

logger = logging.getLogger(__name__)

HOLD_OUT = 10
"""One in this many rows is held out if the environment has no evaluation data."""
MAX_TURNS = 64
"""Turns after which a rollout ends if the environment sets no limit."""


@dataclass
class RolloutState:
    """A rollout's state. Releasing this object abandons the environment's rollout."""

    exchange: RolloutExchange
    turns: int = 0

    def __post_init__(self) -> None:
        weakref.finalize(self, self.exchange.give_up)


class HarnessRollouts(MultiTurnEnv):
    """An environment whose rollouts verifiers runs. It removes special tokens from the turns."""

    answers_misuse = True
    id: str

    def __init__(self, tokenizer: object, *, max_turns: int, **config: Unpack[EnvOptions]) -> None:
        super().__init__(tokenizer, max_turns=max_turns, **config)
        self._special = tuple(map(str, getattr(tokenizer, "all_special_tokens", None) or ()))

    def explain(self) -> str:
        return explain_calls(self.tools, OPTIONAL_CALLS) if self.tools else ""

    def parse(self, text: str) -> ToolCall:
        if self.tools:
            call = parse_calls(text)
            if call.name is not None and means_call(call, {tool.name for tool in self.tools}):
                return call
        return ToolCall("ANSWER", {"text": text.strip()}, text)

    def step(self, state: RolloutState, call: ToolCall) -> StepResult:
        """Pass the turn to verifiers. The messages that its environment adds are the observation."""
        state.turns += 1
        parsed = () if call.name in (None, "ANSWER") else (call, *call.further)
        text = call.thought if parsed else call.text
        for token in self._special:
            text = text.replace(token, "")
        calls = tuple((f"call_{state.turns}_{i}", c.name or "", dict(c.arguments)) for i, c in enumerate(parsed))
        state.exchange.answer(Completion(text, calls, call.cut))
        added = state.exchange.next(self.turn_timeout_s)
        replies = added if added is not None else state.exchange.last_words()
        results = {m.get("tool_call_id"): text_of(m.get("content", "")) for m in replies}
        recorded = tuple(Call(name, arguments, key, results.get(key)) for key, name, arguments in calls)
        observation = "\n".join(text_of(m.get("content", "")) for m in replies)
        if added is not None:
            return StepResult(observation, calls=recorded if len(recorded) > 1 else ())
        return StepResult(observation, done=True, answer=call.text.strip(), calls=recorded if len(recorded) > 1 else ())


class VerifiersEnv(HarnessRollouts):
    """An environment package of `verifiers`: single-turn, multi-turn, tool and stateful tool environments, and groups.

    id: an installed package, as for `vf.load_environment`, or `file.py:load_environment`. args: arguments of its
    `load_environment`. success_score: the minimum total reward of a right rollout (None: the environment's own
    `pass_threshold`, else 1). Each function of the rubric becomes a reward component with its name and weight. Values
    that verifiers only monitors (turns, tool calls) become columns of the record.

    The tasks are the rows of the environment's dataset. Raises ValueError for parts that cannot be mapped.
    """

    name = "verifiers"

    def __init__(
        self,
        tokenizer: object = None,
        *,
        id: str,
        args: Mapping[str, object] | None = None,
        success_score: float | None = None,
        max_turns: int | None = None,
        **config: Unpack[EnvOptions],
    ) -> None:
        self.id = id
        self.env = load(id, dict(args or {}))
        max_turns_of_env = getattr(self.env, "max_turns", -1)
        limit = max_turns_of_env if isinstance(max_turns_of_env, int) and max_turns_of_env > 0 else MAX_TURNS
        super().__init__(tokenizer, max_turns=max_turns or limit, **config)
        self.tools = tuple(tool_of_schema(t.name, t.description, t.parameters) for t in self.env.tool_defs or ())
        threshold = getattr(self.env, "pass_threshold", None)
        self.success_score = success_score if success_score is not None else 1.0 if threshold is None else threshold
        self.weights = rubric_weights(self.env.rubric)
        self._rows: dict[str, Any] = {}
        for limitation in limitations(self.env, self.weights):
            logger.warning("%s: %s", id, limitation)

    # ------------------------------------------------------------------------------------------------ tasks

    def make_tasks(self, split: Split, n: int, seed: int) -> list[dict[str, Any]]:
        """Return at most `n` rows of the environment's dataset, shuffled by `seed`.

        Without an evaluation dataset, one in ten training rows is held out. Raises ValueError.
        """
        eval_dataset = self.env.build_eval_dataset() if self.env.eval_dataset_source is not None else None
        source = "eval" if split == "eval" and eval_dataset is not None else "train"
        table = self._table(source)
        places = range(len(table))
        if eval_dataset is None:
            places = [i for i in places if (hashed(str(table[i]["prompt"])) % HOLD_OUT == 0) == (split == "eval")]
        chosen = list(places)
        random.Random(seed).shuffle(chosen)
        tasks = []
        for index in chosen[:n]:
            row = table[index]
            plain_messages(row["prompt"], f"{self.id}, row {index + 1}")
            task = {"environment": self.id, "data": source, "row": index + 1}
            answer = row.get("answer")
            tasks.append(task | ({"answer": str(answer)} if answer not in (None, "") else {}))
        return tasks

    def _table(self, source: str) -> Any:
        if source not in self._rows:
            table = self.env.build_eval_dataset() if source == "eval" else self.env.build_dataset()
            if table is None or len(table) == 0:
                raise ValueError(f"{self.id} has no dataset to train on (`dataset=` of its environment)")
            self._rows[source] = table
        return self._rows[source]

    # ------------------------------------------------------------------------------------------------ one rollout

    def reset(self, task: Mapping[str, int | str]) -> tuple[RolloutState, list[Message]]:
        """Start the environment's own rollout. The messages come from its first completion request."""
        row = dict(self._table(str(task.get("data", "train")))[int(task["row"]) - 1])
        rollout = RolloutState(RolloutExchange(lambda exchange: self.env.rollout(row, client(exchange), "policy", {})))
        messages = rollout.exchange.next(self.turn_timeout_s)
        if messages is None:
            raise ValueError(f"{self.id} ended the rollout before it asked for a completion")
        return rollout, messages

    def finish(self, states: Sequence[RolloutState]) -> list[Verdict]:
        """End rollouts that hit a limit, and let the rubric score all rollouts of the task together."""
        ended = [state.exchange.end(self.turn_timeout_s) for state in states]
        completed = [state for state in ended if not isinstance(state, BaseException)]
        if completed:
            wait(_score(self.env.rubric, completed), self.turn_timeout_s)
        return [self._verdict(state) for state in ended]

    def _verdict(self, state: Any) -> Verdict:
        if isinstance(state, BaseException):
            return Verdict(error=f"{self.id} raised {one_line(state)}")
        if state.get("error") is not None:
            return Verdict(error=f"{self.id} ended with {one_line(state['error'])}")
        metrics, reward = dict(state.get("metrics") or {}), float(state.get("reward") or 0.0)
        scores, columns = rubric_scores(self.weights, metrics, reward)
        ended = {"stop_condition": str(state["stop_condition"])} if state.get("stop_condition") else {}
        return Verdict(scores, reward >= self.success_score, scores[0].name if scores else TOTAL, {**columns, **ended})


async def _score(rubric: Any, states: list[Any]) -> None:
    await rubric.score_group(states)
    for state in states:
        await rubric.cleanup(state)


def hashed(text: str) -> int:
    """Return 32 bits of a text's hash, which decides the split of a task."""
    return int.from_bytes(hashlib.sha1(text.encode("utf-8", "replace")).digest()[:4], "big")
