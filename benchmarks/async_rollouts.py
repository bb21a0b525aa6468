"""What it costs to wait: `python -m benchmarks.async_rollouts [tools|ahead]`.

tools   a batch of real rollouts whose tool takes 0.1 to 3 s at random: each rollout at its own pace, and all in
        lock-step as a batch of one process goes; both beside the longest single rollout
ahead   the trainer's idle time in steps whose rollouts take three times as long as training, with `max_staleness` 0, 1
        and 2. A SIMULATION: the real scheduling of steps ahead, with sleeps of stated length in the place of
        generation and training. It says nothing about any model, server or GPU.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from grpo_tui.engine.rollouts.ahead import RolloutsAhead
from grpo_tui.engine.rollouts.rollout import Rollout
from grpo_tui.envs.agent import AgentTurn
from grpo_tui.envs.base import StepResult
from grpo_tui.envs.multi_turn import MultiTurnEnv
from grpo_tui.envs.trajectory import TokenArrays

TURN_S = 0.05
"""What writing one turn takes here."""


class SlowTool(MultiTurnEnv):
    """Three calls of a tool that takes 0.1 to 3 s, then an answer; how long depends on task, rollout and turn alone."""

    def __init__(self, *args: Any, scale: float = 1.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.scale = scale
        self.begun = 0

    def reset(self, task: Any) -> Any:
        self.begun += 1
        return {"number": self.begun, "turn": 0, "slept": 0.0}, [{"role": "user", "content": "go"}]

    def step(self, state: Any, call: Any) -> StepResult:
        state["turn"] += 1
        if state["turn"] > 3:
            return StepResult("", done=True, answer=f"{state['slept']}", correct=True)
        seconds = random.Random(f"{state['number']}/{state['turn']}").uniform(0.1, 3.0) * self.scale
        state["slept"] += seconds
        time.sleep(seconds)
        return StepResult("done")


class LockStepSession:
    """Turns that take `TURN_S`, for all rows together."""

    def __init__(self, rows: int) -> None:
        self.turns = [0] * rows

    def act(self, rows: Sequence[int]) -> list[AgentTurn]:
        time.sleep(TURN_S)
        return [self._turn(row) for row in rows]

    def observe(self, rows: Sequence[int], observations: Sequence[str]) -> None:
        pass

    def tokens(self, row: int) -> TokenArrays:
        n = 1 + self.turns[row]
        agent = np.arange(n) > 0
        return TokenArrays(np.zeros(n, np.int32), agent, np.zeros(n, np.float32), (np.arange(n) - 1).astype(np.int16))

    def close(self) -> None:
        pass

    def _turn(self, row: int) -> AgentTurn:
        self.turns[row] += 1
        return AgentTurn('{"name": "X", "arguments": {}}', (self.turns[row], self.turns[row] + 1))


class OwnPaceSession(LockStepSession):
    """The same for one row alone."""

    async def act_alone(self, row: int) -> AgentTurn:
        await asyncio.sleep(TURN_S)
        return self._turn(row)


class Sleeper:
    """An agent with sessions of one kind."""

    def __init__(self, session: type[LockStepSession]) -> None:
        self.session = session

    def start(self, prompts: Sequence[Any], num_rollouts: int = 1, **_: Any) -> LockStepSession:
        return self.session(len(prompts) * num_rollouts)


def tools(rollouts: int, scale: float = 1.0) -> dict[str, float]:
    """Seconds of a batch at each pace, and of its longest rollout (tools and turns)."""
    seconds: dict[str, float] = {}
    for name, kind in (("own pace", OwnPaceSession), ("lock-step", LockStepSession)):
        env = SlowTool(workers=rollouts, scale=scale)
        began = time.perf_counter()
        result = env.run_trial([{}] * (rollouts // 8), Sleeper(kind), 8)
        seconds[name] = time.perf_counter() - began
        slept = [float(t.answer) for t in result["trajectories"]]
        seconds["longest rollout"] = max(slept) + 4 * TURN_S
    return seconds


def ahead(max_staleness: int, generate_s: float, train_s: float, steps: int = 12) -> float:
    """Seconds a step, in the mean, that the trainer waits for rollouts; the first steps, which fill the line, apart."""

    def make(plan: None, step: int, version: int) -> list[Rollout]:
        time.sleep(generate_s)
        return []

    line: RolloutsAhead[None, int] = RolloutsAhead(make, max_staleness)
    idle: list[float] = []
    for step in range(steps):
        for later in range(step + 1, min(step + 1 + max_staleness, steps)):
            line.plan(later, None)
        line.version(step, step)
        began = time.perf_counter()
        if line.take(step) is None:
            make(None, step, step)
        idle.append(time.perf_counter() - began)
        time.sleep(train_s)
    return sum(idle[3:]) / len(idle[3:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("tools", "ahead", "all"), default="all")
    parser.add_argument("--rollouts", type=int, default=128)
    given = parser.parse_args()
    if given.what in ("tools", "all"):
        print(f"{given.rollouts} rollouts of 4 turns of {TURN_S:g} s, 3 calls of a tool that takes 0.1-3 s at random")
        seconds = tools(given.rollouts)
        longest = seconds.pop("longest rollout")
        print(f"  longest single rollout   {longest:6.2f} s")
        for name, value in seconds.items():
            print(f"  {name:<24} {value:6.2f} s   {value / longest:.2f} x the longest rollout")
    if given.what in ("ahead", "all"):
        print("simulated steps (sleeps): rollouts take 1.5 s, training 0.5 s")
        for max_staleness in (0, 1, 2):
            idle = ahead(max_staleness, 1.5, 0.5)
            print(f"  max_staleness {max_staleness}   the trainer waits {idle:.2f} s a step")


if __name__ == "__main__":
    main()
