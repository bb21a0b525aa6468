"""Rollouts of later steps: which version makes them, and what the trainer gets."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks import async_rollouts
from grpo_tui.engine.rollouts.ahead import Made, RolloutsAhead
from grpo_tui.engine.rollouts.correction import Weighting, corrected
from grpo_tui.engine.rollouts.rollout import Rollout
from grpo_tui.engine.rollouts.runner import RolloutRunner, Row
from grpo_tui.envs.base import StepResult

MASK = np.array([0, 0, 1, 1, 0, 1, 1, 1], bool)


def rollout(logprobs: np.ndarray, mask: np.ndarray = MASK) -> Rollout:
    return Rollout(
        np.zeros(len(mask), np.int64),
        mask,
        np.where(mask, 0, -1).astype(np.int16),
        np.zeros(len(mask), np.float32),
        0,
        0,
        logprobs=logprobs,
    )


def group(number: int = 0) -> list[Rollout]:
    return [replace(rollout(np.zeros(8, np.float32)), group=number, id=str(number))]


class Making:
    """Groups that are made when the test wants it; `begun`: the version of each, by step and place."""

    def __init__(self, max_staleness: int, steps_ahead: int) -> None:
        self.begun: dict[tuple[int, int], int] = {}
        self.made: dict[tuple[int, int], Made] = {}
        self.held: list[int] = []
        self.ahead: RolloutsAhead[int, int] = RolloutsAhead(self.make, max_staleness, steps_ahead, self.holding)

    def make(self, plans: Sequence[int], step: int, version: int) -> list[Made]:
        for place in range(len(plans)):
            self.begun[step, place] = version
            self.made[step, place] = Future()
        return [self.made[step, place] for place in range(len(plans))]

    @contextmanager
    def holding(self, version: int) -> Iterator[None]:
        self.held.append(version)
        yield
        self.held.remove(version)

    def begin(self, step: int, size: int = 2) -> None:
        """As a trainer does at the beginning of a step."""
        for later in range(step + 1, step + 1 + self.ahead.steps_ahead):
            self.ahead.plan(later, [later] * size)
        self.ahead.version(step, step)

    def finish(self, *groups: tuple[int, int]) -> None:
        for step, place in groups:
            self.made[step, place].set_result(group(10 * step + place))

    def take(self, step: int) -> list[str] | None:
        """The ids of a step's groups; None if it would wait."""
        with ThreadPoolExecutor(1) as thread:
            taking = thread.submit(self.ahead.take, step)
            try:
                taken = taking.result(0.2)
            except TimeoutError:
                for future in self.made.values():
                    if not future.done():
                        future.set_result(group(99))
                return None
        assert taken is not None and [r.group for r in taken.rollouts] == list(range(len(taken.rollouts)))
        return [r.id for r in taken.rollouts]


@pytest.mark.parametrize("max_staleness", [1, 2, 3])
def test_as_many_steps_ahead_as_the_staleness_give_each_step_its_own_prompts(max_staleness: int):
    making = Making(max_staleness, max_staleness)
    for step in range(6):
        making.begin(step)
        assert step == 0 or making.begun[step, 0] == max(step - max_staleness, 0)
        if step == 0:
            assert making.ahead.take(0) is None, "the first step has nothing before it"
            continue
        making.finish((step, 1), (step, 0))
        assert making.take(step) == [f"{10 * step}", f"{10 * step + 1}"]
    assert sorted(making.held) == [5 - i for i in range(max_staleness)][::-1], "later groups still need their versions"


def test_a_slow_group_delays_no_step_until_it_would_be_too_old():
    making = Making(3, 1)
    making.begin(0)
    making.finish((1, 1))
    making.begin(1)
    making.finish((2, 0), (2, 1))
    assert making.take(1) == ["11", "20"], "the slow group 10 waits; the oldest of the others take its place"
    making.begin(2)
    making.finish((3, 0))
    assert making.take(2) == ["21", "30"]
    making.begin(3)
    making.finish((4, 0), (4, 1))
    assert making.take(3) is None, "group 10 is three steps old: step 3 waits for it"


def test_a_due_group_is_taken_before_complete_ones():
    making = Making(2, 1)
    making.begin(0)
    making.begin(1)
    making.finish((2, 0), (2, 1))
    assert making.take(1) == ["20", "21"]
    making.begin(2)
    making.finish((3, 0), (3, 1), (1, 0), (1, 1))
    assert making.take(2) == ["10", "11"] and not making.held


@pytest.mark.parametrize(("max_staleness", "steps_ahead"), [(1, 1), (2, 1), (3, 2), (4, 1), (5, 5), (6, 3)])
@pytest.mark.parametrize("seed", range(5))
def test_in_any_order_of_completion_all_groups_are_taken_once_and_in_time(
    max_staleness: int, steps_ahead: int, seed: int
):
    rng = random.Random(f"{seed}/{max_staleness}/{steps_ahead}")
    making, last = Making(max_staleness, steps_ahead), 30
    taken: list[str] = []
    for step in range(last):
        making.begin(step, 3)
        waiting = [key for key, future in making.made.items() if not future.done()]
        making.finish(*rng.sample(waiting, rng.randint(0, len(waiting))))
        if step == 0:
            continue
        due = [key for key, future in making.made.items() if not future.done()]
        finisher = threading.Thread(target=lambda keys=due: [making.finish(key) for key in keys])  # type: ignore[misc]
        finisher.start()
        found = making.ahead.take(step)
        finisher.join()
        assert found is not None and len(found.rollouts) == 3
        ids = [int(r.id) for r in found.rollouts]
        assert all(step - making.begun[divmod(i, 10)] <= max_staleness for i in ids)
        taken += map(str, ids)
    assert len(set(taken)) == len(taken) == 3 * (last - 1)


def test_what_making_a_group_raised_is_raised_where_a_step_asks():
    making = Making(1, 1)
    making.begin(0)
    making.finish((1, 0))
    making.made[1, 1].set_exception(OSError("no more servers"))
    with pytest.raises(OSError, match="no more servers"):
        making.ahead.take(1)


def test_plans_of_steps_that_are_over_are_forgotten():
    making = Making(2, 2)
    making.ahead.plan(1, [1, 1])
    making.ahead.version(5, 5)
    assert making.ahead.take(1) is None and not making.begun


@pytest.mark.parametrize("how", ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask", "none"])
@pytest.mark.parametrize(("floor", "cap"), [(0.0, 0.5), (0.0, 1.0), (0.5, 3.0), (0.9, 1.1)])
@pytest.mark.parametrize("spread", [0.0, 1e-3, 0.3, 20.0])
def test_weights_are_those_of_their_definition(spread: float, floor: float, cap: float, how: Any):
    rng = np.random.default_rng([int(spread * 1000), int(cap * 10)])
    sampled = -rng.exponential(1.0, 8).astype(np.float32)
    present = (sampled + rng.normal(0, spread, 8)).astype(np.float32)
    ratios = [float(np.exp(np.float64(p) - np.float64(s))) for p, s in zip(present, sampled, strict=True)]
    product = float(np.prod([r for r, m in zip(ratios, MASK, strict=True) if m], dtype=np.float64))

    def weight(ratio: float) -> float:
        if how == "none":
            return 1.0
        inside = floor <= ratio <= cap
        return min(max(ratio, floor), cap) if how.endswith("truncate") else ratio if inside else 0.0

    chosen = [product] * 8 if how.startswith("sequence") else ratios
    expected = [weight(r) if m else 1.0 for r, m in zip(chosen, MASK, strict=True)]
    (done,) = corrected([rollout(sampled)], [rollout(present)], Weighting(how, floor, cap))
    found = np.ones(8) if done.importance is None else done.importance
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_the_loss_compares_with_the_present_policy_and_weighs_the_advantages():
    sampled, present = np.full(8, -1.0, np.float32), np.full(8, -2.0, np.float32)
    made, now = [rollout(sampled)], [rollout(present)]
    (done,) = corrected(made, now, Weighting())
    np.testing.assert_array_equal(done.logprobs, present)  # type: ignore[arg-type]
    np.testing.assert_allclose(done.importance[MASK], np.exp(-1.0), rtol=1e-6)  # type: ignore[index]
    assert corrected(made, now, Weighting("none")) == made


class Stopped(async_rollouts.SlowTool):
    """Rollouts of the task `wait` go on once the rollouts of another task are delivered; a task may be broken."""

    go_on = threading.Event()
    judged: list[int]

    def reset(self, task: Any) -> Any:
        if task["name"] == "broken":
            raise ValueError("no such task")
        return {"turn": 0, "name": task["name"]}, [{"role": "user", "content": task["name"]}]

    def step(self, state: Any, call: Any) -> StepResult:
        if state["name"] == "wait":
            assert self.go_on.wait(20)
        state["turn"] += 1
        return StepResult("done", done=state["turn"] == 2, answer=state["name"], correct=True)

    def finish(self, states: Any) -> Any:
        self.judged.append(len(states))
        return [None] * len(states)


def test_a_trial_hands_over_each_task_when_its_rollouts_have_ended():
    env, seen = Stopped(workers=8), []
    env.judged = []

    def on_group(task: int, result: dict[str, Any]) -> None:
        seen.append((task, [t.answer for t in result["trajectories"]], len(result["tokens"])))
        env.go_on.set()

    tasks = [{"name": name} for name in ("wait", "quick", "broken")]
    rest = env.run_trial(tasks, async_rollouts.Sleeper(async_rollouts.OwnPaceSession), 3, on_group=on_group)
    assert not rest["trajectories"] and seen[0] == (1, ["quick"] * 3, 3)
    assert sorted(seen) == [(0, ["wait"] * 3, 3), (1, ["quick"] * 3, 3), (2, [None] * 3, 3)]
    assert env.judged == [3, 3, 0], "each task is judged by itself"


@pytest.mark.parametrize("session", [async_rollouts.OwnPaceSession, async_rollouts.LockStepSession])
def test_a_runner_hands_over_the_rows_that_it_returns(session: Any):
    path = "benchmarks.async_rollouts.SlowTool"
    rows = [Row(path, {"scale": 0.01}, {"number": number}) for number in range(4)]
    early: list[list[Rollout]] = []
    runner = RolloutRunner(async_rollouts.Sleeper(session), None, 2)  # type: ignore[arg-type]
    made = runner.run(rows, first=3, seed=0, policy_version=7, on_group=early.append)
    assert sorted(g[0].group for g in early) == [3, 4, 5, 6] and all(len(g) == 2 for g in early)
    assert made == [r for g in sorted(early, key=lambda g: g[0].group) for r in g]
    assert {r.policy_version for r in made} == {7}


def test_rollouts_that_go_at_their_own_pace_take_what_the_longest_of_them_takes():
    seconds = async_rollouts.tools(32, scale=0.2)
    assert seconds["own pace"] < seconds["lock-step"]


def test_ahead_of_time_the_trainer_waits_less_than_half():
    assert async_rollouts.ahead(2, 2, 0.3, 0.1, steps=8)[0] < 0.5 * async_rollouts.ahead(0, 0, 0.3, 0.1, steps=8)[0]
