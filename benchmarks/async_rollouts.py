"""What it costs to wait: `python -m benchmarks.async_rollouts [tools|ahead|publish]`.

tools   a batch of real rollouts whose tool takes 0.1 to 3 s at random: each rollout at its own pace, and all in
        lock-step as a batch of one process goes; both beside the longest single rollout
ahead   the trainer's idle time in steps whose rollouts take three times as long as training, by `max_staleness` and
        `steps_ahead`. A SIMULATION: the real scheduling of steps ahead, with sleeps of stated length in the place of
        generation and training. It does not measure any model, server or GPU.
publish the time from the publication of a version to its first turn, with turns of 6 s of the version before in flight
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from grpo_tui.engine.rollouts.ahead import Made, RolloutsAhead
from grpo_tui.engine.rollouts.rollout import Rollout
from grpo_tui.envs.agent import AgentTurn
from grpo_tui.envs.base import StepResult
from grpo_tui.envs.multi_turn import MultiTurnEnv
from grpo_tui.envs.trajectory import TokenArrays
from tests.engine.agents.fake_vllm import FakeVLLM
from tests.engine.agents.models import model, tokenizer
from tests.engine.agents.test_remote import World, move, play

TURN_S = 0.05
"""Seconds to write one turn."""
GROUPS = 8
"""Groups in a simulated step."""


class SlowTool(MultiTurnEnv):
    """Three calls of a tool that takes 0.1 to 3 s, then an answer. The time depends only on task, rollout and turn."""

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
    """Writes turns in `TURN_S`, for all rows together."""

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
    """Writes turns in `TURN_S`, for each row independently."""

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
    """Measure the seconds of a batch at each pace, and of its longest rollout (tools and turns)."""
    seconds: dict[str, float] = {}
    for name, kind in (("own pace", OwnPaceSession), ("lock-step", LockStepSession)):
        env = SlowTool(workers=rollouts, scale=scale)
        began = time.perf_counter()
        result = env.run_trial([{}] * (rollouts // 8), Sleeper(kind), 8)
        seconds[name] = time.perf_counter() - began
        slept = [float(t.answer) for t in result["trajectories"]]
        seconds["longest rollout"] = max(slept) + 4 * TURN_S
    return seconds


def ahead(
    max_staleness: int, steps_ahead: int, generate_s: float, train_s: float, steps: int = 12, spread: float = 0.0
) -> tuple[float, float]:
    """Simulate steps of `GROUPS` groups. Returns two means over the steps after the first three: the seconds that the
    trainer waits, and the age of its groups in steps.

    A group takes `generate_s` times a log-normal factor, whose logarithm has the standard deviation `spread`.
    """

    def seconds(step: int, place: int) -> float:
        return generate_s * random.Random(f"{step}/{place}").lognormvariate(0.0, spread)

    def make(plans: Sequence[None], step: int, version: int) -> list[Made]:
        groups: list[Made] = []
        for place in range(len(plans)):
            made: Made = Future()
            empty = np.zeros(0, np.int64)
            rollout = Rollout(empty, empty.astype(bool), empty, empty, 0, 0, policy_version=version)
            threading.Timer(seconds(step, place), made.set_result, [[rollout]]).start()
            groups.append(made)
        return groups

    line: RolloutsAhead[None, int] = RolloutsAhead(make, max_staleness, steps_ahead)
    idle: list[float] = []
    age: list[float] = []
    for step in range(steps):
        for later in range(step + 1, min(step + 1 + steps_ahead, steps)):
            line.plan(later, [None] * GROUPS)
        line.version(step, step)
        began = time.perf_counter()
        taken = line.take(step)
        if taken is None:
            time.sleep(max(seconds(step, place) for place in range(GROUPS)))
        idle.append(time.perf_counter() - began)
        age.append(0.0 if taken is None else step - float(np.mean([r.policy_version for r in taken.rollouts])))
        time.sleep(train_s)
    return sum(idle[3:]) / len(idle[3:]), sum(age[3:]) / len(age[3:])


def publication(turn_s: float, rounds: int = 5) -> list[float]:
    """Measure the seconds from the publication of a version to its first turn, while the previous version writes turns
    of `turn_s` seconds. The server is the tests' server: a tiny model behind vLLM's protocol over HTTP."""
    server = FakeVLLM(copy.deepcopy(model("qwen3")), tokenizer(), on_cpu=False).start()
    seconds: list[float] = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as threads:
        world = World(Path(folder), [server])
        world.agent.publish(0)
        play(world.agent, turns=1)
        for step in range(1, rounds + 1):
            server.fail(*[f"slow {turn_s}"] * 9)
            writing = threads.submit(play, world.agent, 1)
            while server.faults:
                time.sleep(0.005)
            move(world.policy)
            began = time.perf_counter()
            name = world.agent.publish(step).name
            threads.submit(play, world.agent, 1)
            while not any(r["model"] == name and not r["request_id"].startswith("probe") for r in server.requests):
                time.sleep(0.002)
            seconds.append(time.perf_counter() - began)
            assert not writing.done(), "the old version had turns in flight"
            writing.result()
        world.pool.close()
    server.stop()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("tools", "ahead", "publish", "all"), default="all")
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
        for spread, name in (
            (0.0, "all groups take 1.5 s"),
            (1.0, "a group takes 1.5 s in the median, 8 s in 1 of 20"),
        ):
            print(f"simulated steps (sleeps): training 0.5 s, {name}")
            for staleness, steps_ahead in ((0, 0), (1, 1), (2, 2), (2, 1), (4, 4), (4, 2), (8, 2)):
                idle, age = ahead(staleness, steps_ahead, 1.5, 0.5, 40 if spread else 12, spread)
                print(
                    f"  max_staleness {staleness}, steps_ahead {steps_ahead}   the trainer waits {idle:.2f} s a step, "
                    f"groups are {age:.2f} steps old"
                )
    if given.what in ("publish", "all"):
        seconds = publication(6.0)
        print(
            f"from publication to the first turn of the new version, {len(seconds)} times, with turns of 6 s in flight"
        )
        print(f"  median {statistics.median(seconds):.2f} s, longest {max(seconds):.2f} s")


if __name__ == "__main__":
    main()
