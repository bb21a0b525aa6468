"""Adapt a verifiers 0.4 taskset and the harness that runs it.

The harness is a program. It requests completions from this process (`endpoint.py`), runs the tools, and exits by
itself. verifiers then scores the trace.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import itertools
import random
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, Unpack

from ...agent import Message
from ...base import EnvOptions, Split, Verdict
from ...tools import ToolSpec, tool_of_schema
from ...trajectory import ComponentScore
from ...user_code import one_line
from .endpoint import Endpoint
from .env import HOLD_OUT, MAX_TURNS, HarnessRollouts, RolloutState, hashed
from .exchange import RolloutExchange
from .library import component, own_signals

START_S = 120.0
"""Maximum time until a harness requests its first completion."""


class TasksetEnv(HarnessRollouts):
    """A verifiers 0.4 taskset and the harness that runs it, in one seat.

    id: an installed taskset. args: its configuration. harness: configuration of the harness with its `id` (None: the
    taskset's own), which must use chat completions. runtime: where its program runs. limit: the number of tasks to read
    from an infinite taskset. success_score: the minimum reward of a right rollout. Each reward becomes a component with
    its name and weight, and each metric a column of the record.

    The first request of the first task determines the tools, which must not change. Raises ValueError.
    """

    name = "verifiers-taskset"

    def __init__(
        self,
        tokenizer: object = None,
        *,
        id: str,
        args: Mapping[str, object] | None = None,
        harness: Mapping[str, object] | None = None,
        runtime: Mapping[str, object] | None = None,
        limit: int = 10_000,
        success_score: float = 1.0,
        max_turns: int | None = None,
        **config: Unpack[EnvOptions],
    ) -> None:
        self.id = id
        self.success_score = success_score
        self._served = _load(id, dict(args or {}), dict(harness or {}), dict(runtime or {"type": "subprocess"}))
        self._endpoint = Endpoint()
        self._tasks: list[Any] = list(itertools.islice(self._served.env.taskset, limit))
        if not self._tasks:
            raise ValueError(f"the taskset {id} has no tasks")
        super().__init__(tokenizer, max_turns=max_turns or MAX_TURNS, **config)
        (rollout, _), self.tools = self._start(0)
        rollout.exchange.give_up()

    def make_tasks(self, split: Split, n: int, seed: int) -> list[dict[str, int | str]]:
        """Return at most `n` tasks, shuffled by `seed`. A tenth is held out, selected by the hashes of the keys."""
        order = sorted(range(len(self._tasks)), key=lambda i: hashed(self._tasks[i].key))
        held_out = max(1, len(order) // HOLD_OUT)
        places = order[:held_out] if split == "eval" else order[held_out:]
        random.Random(seed).shuffle(places)
        return [{"taskset": self.id, "row": i, "key": self._tasks[i].key} for i in places[:n]]

    def reset(self, task: Mapping[str, int | str]) -> tuple[RolloutState, list[Message]]:
        """Start an episode. The messages come from the harness's first completion request."""
        rollout, tools = self._start(int(task["row"]))
        if tools != self.tools:
            raise ValueError(f"{self.id} offers different tools in this task than in its first, which is not supported")
        return rollout

    def finish(self, states: Sequence[RolloutState]) -> list[Verdict]:
        """End episodes that hit a limit, and return all scores."""
        return [self._verdict(state.exchange.end(self.turn_timeout_s)) for state in states]

    def _start(self, row: int) -> tuple[tuple[RolloutState, list[Message]], tuple[ToolSpec, ...]]:
        exchange = RolloutExchange(functools.partial(self._played, self._tasks[row]))
        rollout = RolloutState(exchange)
        messages = exchange.next(max(START_S, self.turn_timeout_s))
        if messages is None:
            outcome = exchange.end(1.0)
            problem = one_line(outcome) if isinstance(outcome, BaseException) else _problem_of(outcome)
            raise ValueError(f"{self.id} ended the episode before it asked for a completion: {problem}")
        tools = (tool_of_schema(t["name"], t.get("description"), t.get("parameters")) for t in exchange.tools)
        return (rollout, messages), tuple(tools)

    async def _played(self, task: Any, exchange: RolloutExchange) -> object:
        served = self._served
        await served.open()
        context = await self._endpoint.context(served.v1)
        env = served.env
        with contextlib.ExitStack() as known:
            return await env.run_slot(
                env.slots(task)[0],
                context,
                on_trace=lambda trace: known.enter_context(self._endpoint.known(trace.id, exchange)),
            )

    def _verdict(self, episode: Any) -> Verdict:
        if isinstance(episode, BaseException):
            return Verdict(error=f"{self.id} raised {one_line(episode)}")
        if not episode.traces or any(reward is None for reward in episode.traces[0].rewards.values()):
            return Verdict(error=f"{self.id} ended with {_problem_of(episode)}")
        (trace,) = episode.traces
        scores = tuple(ComponentScore(component(name), r.score, r.weight) for name, r in trace.rewards.items())
        columns = {name: value for name, value in trace.metrics.items() if value is not None}
        ended = {"stop_condition": trace.stop_condition} if trace.stop_condition else {}
        first = scores[0].name if scores else ""
        return Verdict(scores, trace.reward >= self.success_score, first, {**columns, **ended})


class _Served:
    """A verifiers `Env` with its serving resources, which open on the background loop on first use."""

    def __init__(self, env: Any, v1: ModuleType) -> None:
        self.env, self.v1 = env, v1
        self._opening: asyncio.Future[None] | None = None

    async def open(self) -> None:
        opening = self._opening = self._opening or asyncio.ensure_future(self.env.serving().__aenter__())
        await asyncio.shield(opening)


def _load(id: str, args: dict[str, object], harness: dict[str, object], runtime: dict[str, object]) -> _Served:
    """Create the environment of a taskset. Raises ValueError with a one-sentence message."""
    try:
        v1 = importlib.import_module("verifiers.v1")
        loaders = importlib.import_module("verifiers.v1.utils.loaders")
        single = v1.SingleAgentEnv
    except (ImportError, AttributeError) as problem:
        raise ValueError(
            f"verifiers tasksets need verifiers 0.4 ({one_line(problem)}); pip install 'verifiers>=0.4'"
        ) from problem
    with own_signals():
        try:
            kind = loaders.environment_class(id)
            if not issubclass(kind, single):
                raise ValueError(f"its environment {kind.__name__} has several agents, but only one policy is trained")
            seat = {"runtime": runtime, **({"harness": harness} if harness else {})}
            config = v1.SingleAgentEnvConfig(taskset={"id": id, **args}, agent=seat)
            return _Served(loaders.load_environment(config), v1)
        except Exception as problem:
            raise ValueError(f"the taskset {id} cannot be loaded: {one_line(problem)}") from problem


def _problem_of(episode: Any) -> str:
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    return " ".join(f"{errors[-1].type}: {errors[-1].message}".split())[:300] if errors else "no score"
