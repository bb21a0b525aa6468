"""Small questions with exact answers, and the success of the base model on them.

    python -m benchmarks.questions [--tasks larger sums ...] [--seeds 0 1 2] [--held-out 100]

Each task draws its questions from a fixed pool of pairs. Training and held-out questions of a seed never share a pair.
A form of `online.answer` extracts the answer: the first number for comparisons, because a text such as "27 is larger
than 82" ends with the right number, and the last number for sums and products. The table has the success of
SmolLM2-135M-Instruct on held-out questions: greedy, one sample at temperature 1 (pass@1), and the majority of eight
(maj@8), with 95 % intervals over the seeds (Student's t).
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from grpo_tui.envs.extraction import make_extractor

from .mechanisms import interval
from .smollm2 import smollm2

NUMBER_ONLY = " Reply with one number and nothing else."
FIRST, LAST = r"^\D*(\d+)", "last_number"
"""Forms of `online.answer`."""
VOTES = 8


class Question(NamedTuple):
    """A question and its integer answer."""

    text: str
    answer: str


@dataclass(frozen=True)
class Task:
    """One task. ask: the question, with placeholders for two numbers. answer: computes the answer from them. numbers:
    the range of both. form: an `online.answer` form. tokens: length limit of an answer.
    """

    ask: str
    answer: Callable[[int, int], int]
    numbers: range
    form: str
    tokens: int

    def right(self, text: str, question: Question) -> bool:
        """Return whether the answer in a text is right."""
        extract = make_extractor(self.form)
        assert extract is not None
        return extract(text) == question.answer

    def question(self, a: int, b: int) -> Question:
        return Question(self.ask.format(a, b) + NUMBER_ONLY, str(self.answer(a, b)))


TASKS = {
    "larger": Task("Which number is larger, {} or {}?", max, range(10, 100), FIRST, 8),
    "smaller": Task("Which number is smaller, {} or {}?", min, range(10, 100), FIRST, 8),
    "sums": Task("What is {} + {}?", lambda a, b: a + b, range(1, 60), LAST, 12),
    "products": Task("What is {} * {}?", lambda a, b: a * b, range(1, 60), LAST, 12),
}


def split(task: str, seed: int, train: int, held_out: int) -> tuple[list[Question], list[Question]]:
    """Return `train` and `held_out` questions. Raises ValueError if the task has too few pairs of numbers."""
    chosen, rng = TASKS[task], random.Random(f"{task} {seed}")
    pairs = [(a, b) for a in chosen.numbers for b in chosen.numbers if a < b]
    if train + held_out > len(pairs):
        raise ValueError(f"{task} has {len(pairs)} pairs of numbers, fewer than {train} + {held_out}")
    rng.shuffle(pairs)
    questions = [chosen.question(*rng.sample(pair, 2)) for pair in pairs[: train + held_out]]
    return questions[held_out:], questions[:held_out]


class Base:
    """SmolLM2-135M-Instruct in transformers, without a server, on a GPU if available."""

    def __init__(self, dtype: str = "float32") -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        folder = str(smollm2())
        self.words: Any = AutoTokenizer.from_pretrained(folder, padding_side="left")
        device = "cuda" if torch.cuda.is_available() else "cpu"
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
        self.model = model.to(device)

    def write(self, questions: Sequence[Question], tokens: int, **how: Any) -> list[str]:
        """Generate the texts of one batch. With `num_return_sequences`, the texts of a question are adjacent."""
        chats = [[{"role": "user", "content": q.text}] for q in questions]
        given = self.words.apply_chat_template(
            chats, add_generation_prompt=True, return_tensors="pt", return_dict=True, padding=True
        ).to(self.model.device)
        out = self.model.generate(**given, max_new_tokens=tokens, **how)
        return self.words.batch_decode(out[:, given["input_ids"].shape[1] :], skip_special_tokens=True)

    def greedy(self, questions: Sequence[Question], tokens: int) -> list[str]:
        """Generate greedily, one question at a time, so that padding does not change the numerics."""
        return [text for q in questions for text in self.write([q], tokens, do_sample=False)]


def base_success(base: Base, task: Task, questions: Sequence[Question]) -> dict[str, float]:
    """Return the success `greedy`, `pass@1` and `maj@8`, in [0, 1]."""
    extract = make_extractor(task.form)
    assert extract is not None
    greedy = base.greedy(questions, task.tokens)
    alone, voted = [], []
    for question in questions:
        how = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "num_return_sequences": VOTES}
        found = [extract(text) for text in base.write([question], task.tokens, **how)]
        votes = Counter(answer for answer in found if answer is not None)
        alone += [answer == question.answer for answer in found]
        voted.append(bool(votes) and votes.most_common(1)[0][0] == question.answer)
    return {
        "greedy": statistics.fmean(task.right(t, q) for t, q in zip(greedy, questions, strict=True)),
        "pass@1": statistics.fmean(alone),
        f"maj@{VOTES}": statistics.fmean(voted),
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="*", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--held-out", type=int, default=100)
    given = parser.parse_args()
    import torch

    base = Base()
    for task in given.tasks:
        rows = []
        for seed in given.seeds:
            torch.manual_seed(seed)
            rows.append(base_success(base, TASKS[task], split(task, seed, 0, given.held_out)[1]))
        cells = " | ".join(interval([row[name] for row in rows]) for name in rows[0])
        print(f"| {task} | {cells} |" + (f"   {', '.join(rows[0])}" if task == given.tasks[0] else ""), flush=True)


if __name__ == "__main__":
    main()
