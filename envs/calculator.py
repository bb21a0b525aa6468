"""The smallest complete environment: evaluate an expression with a tool, one operation per turn.

It is multi-turn, text-only and deterministic, and serves as the example for authors.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Unpack

from .agent import Message
from .base import Demonstrator, EnvOptions, Split, StepResult
from .calls import ToolCall, format_call
from .multi_turn import MultiTurnEnv
from .seeds import split_of
from .tools import Argument, ToolSpec
from .trajectory import StepContext

OPERATIONS = ("add", "subtract", "multiply")
_SIGNS = {"add": "+", "subtract": "-", "multiply": "*"}


def apply(operation: str, a: int, b: int) -> int:
    """Apply one operation to two integers."""
    return a + b if operation == "add" else a - b if operation == "subtract" else a * b


@dataclass
class CalculatorState:
    """The state of a rollout."""

    task: Mapping[str, Any]
    results: list[int] = field(default_factory=list)


class CalculatorEnv(MultiTurnEnv[CalculatorState]):
    """Tasks `{"start": 3, "operations": [["add", 4], ["multiply", 2]], "answer": "14"}`.

    CALCULATE names its result (`r1`), and ANSWER ends the rollout. The reward is 1 for the right answer, else 0.
    operations: the maximum number per task.
    """

    name = "calculator"
    tools = (
        ToolSpec(
            "CALCULATE",
            "Works out a operation b.",
            (
                Argument("operation", "string", "what to do", choices=OPERATIONS),
                Argument("a", "integer", minimum=-9999, below=10000),
                Argument("b", "integer", minimum=-9999, below=10000),
            ),
            produces="result",
        ),
        ToolSpec("ANSWER", "Ends the task with the answer.", (Argument("text", "string", "the answer"),), final=True),
    )

    def __init__(
        self, tokenizer: object = None, *, operations: int = 2, max_turns: int = 8, **config: Unpack[EnvOptions]
    ) -> None:
        super().__init__(tokenizer, max_turns=max_turns, **config)
        if operations < 1:
            raise ValueError(f"operations must be at least 1, not {operations}")
        self.operations = operations

    @classmethod
    def task_of_question(cls, question: str, images: Sequence[str]) -> None:
        return None

    def make_tasks(self, split: Split, n: int, seed: int) -> list[dict[str, Any]]:
        """Return `n` tasks. The hash of a task's expression decides its split."""
        rng = random.Random(f"{split} {seed}")
        tasks = []
        while len(tasks) < n:
            value = start = rng.randrange(2, 10)
            operations: list[list[str | int]] = []
            for _ in range(rng.randrange(1, self.operations + 1)):
                operation, b = rng.choice(OPERATIONS), rng.randrange(2, 10)
                operations.append([operation, b])
                value = apply(operation, value, b)
            if split_of(repr((start, operations))) == split:
                tasks.append({"start": start, "operations": operations, "answer": str(value)})
        return tasks

    def reset(self, task: Mapping[str, Any]) -> tuple[CalculatorState, list[Message]]:
        steps = "".join(f" then {operation} {b}" for operation, b in task["operations"])
        content = f"start {task['start']}{steps}. CALCULATE(operation,a,b), ANSWER(text)"
        return CalculatorState(task), [{"role": "user", "content": content}]

    def context(self, state: CalculatorState) -> StepContext:
        return StepContext("text", {"operations": len(state.task["operations"])})

    def step(self, state: CalculatorState, call: ToolCall) -> StepResult:
        if call.name == "ANSWER":
            answer = call.arguments["text"].strip()
            correct = answer == state.task["answer"]
            return StepResult("correct" if correct else "wrong", float(correct), True, answer, correct)
        a, b, operation = call.arguments["a"], call.arguments["b"], call.arguments["operation"]
        state.results.append(apply(operation, a, b))
        name = f"r{len(state.results)}"
        text = f"{name}: {a} {_SIGNS[operation]} {b} = {state.results[-1]}"
        return StepResult(text, produced={"result": (name,)})

    def routes(self, task: Mapping[str, object]) -> Sequence[str]:
        """Return the right route, a guess, and one that skips the last operation."""
        return ("right", "guess", "stop_early")

    def demonstrate(self, task: Mapping[str, object], route: str = "right", seed: int = 0) -> Demonstrator:
        if route not in self.routes(task):
            raise ValueError(f"CalculatorEnv has no route {route!r}, only {', '.join(self.routes(task))}")
        return _Demonstrator(task, route, random.Random(seed))


class _Demonstrator:
    def __init__(self, task: Mapping[str, Any], route: str, rng: random.Random) -> None:
        self.value = task["start"]
        self.guess = rng.randrange(-20, 100)
        self.left = [] if route == "guess" else list(task["operations"])
        if route == "stop_early":
            self.left.pop()
        self.route = route

    def next(self, observation: str | None) -> str:
        if observation is not None and "=" in observation:
            self.value = int(observation.rsplit("=", 1)[1])
        if self.left:
            operation, b = self.left.pop(0)
            return format_call("CALCULATE", {"operation": operation, "a": self.value, "b": b})
        return format_call("ANSWER", {"text": str(self.guess if self.route == "guess" else self.value)})
