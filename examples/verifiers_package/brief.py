"""A package for verifiers, without any import of grpo-tui."""

import random

import verifiers as vf
from datasets import Dataset


async def answers_at_once(completion) -> float:
    """Return 1 for an answer in the first turn."""
    return float('"ANSWER"' in completion[-1]["content"])


async def brief(completion) -> float:
    """Return 1 for an empty turn, falling to 0 at 200 characters."""
    return max(0.0, 1 - len(completion[-1]["content"]) / 200)


def load_environment(rows: int = 200) -> vf.Environment:
    """Load sums in words, one turn each."""
    rng = random.Random(0)
    pairs = [(rng.randrange(50), rng.randrange(50)) for _ in range(rows)]
    data = Dataset.from_list([{"question": f"what is {a} + {b}?", "answer": str(a + b)} for a, b in pairs])
    rubric = vf.Rubric(funcs=[answers_at_once, brief], weights=[1.0, 0.2])
    return vf.SingleTurnEnv(dataset=data, rubric=rubric)
