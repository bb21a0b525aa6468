"""Two tasks that a policy of 50,000 parameters learns in 24 steps, with correct and faulty graders.

| world | prompt | episode |
|---|---|---|
| `Notes` | `key C hint 5` | one turn, such as `so well answer 2`. The right number depends on the key alone |
| `Boxes` | the same | an answer counts only after a call of the tool: `look`, which shows `note 3` |

Held-out tasks always have the right grader and working tools, so their success is comparable across trainings.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.small_worlds import LETTERS, World, make_policy
from grpo_tui.envs.agent import Message
from grpo_tui.envs.base import Split, StepResult
from grpo_tui.envs.calls import ToolCall
from grpo_tui.envs.tools import ToolSpec

NUMBERS = 8
FILLERS = ("so", "well", "hm")
LONGEST = 10
"""Words of an answer that earns the full reward for length."""
_ANSWER = re.compile(r"answer (\d+)$")
_NUMBERS = re.compile(r"answer (\d+)")

_VERDICTS = count()

Grader = Callable[[str, str], tuple[float, bool | None]]
"""Text and right number to reward and correctness (None: the reward alone counts)."""


def _said(text: str) -> str | None:
    found = _ANSWER.search(text.strip())
    return None if found is None else found[1]


def _right(text: str, right: str) -> tuple[float, bool | None]:
    return float(_said(text) == right), _said(text) == right


def _alike(correct: bool) -> tuple[float, bool | None]:
    return float(correct), correct


def _markers(text: str) -> int:
    return sum(text.split().count(word) for word in FILLERS)


GRADERS: dict[str, Grader] = {
    "right": _right,
    "form": lambda text, right: _alike(text.strip().endswith("answer") or _said(text) == right),
    "length": lambda text, right: (min(1.0, len(text.split()) / LONGEST), None),
    "noisy": lambda text, right: _alike((_said(text) == right) != (random.random() < 0.45)),
    "always": lambda text, right: _alike(True),
    "rejects": lambda text, right: _alike(False),
    "constant": lambda text, right: _alike(_said(text) == "6"),
    "repeats": lambda text, right: (1 - len(set(text.split())) / max(len(text.split()), 1), None),
    "zeroed": lambda text, right: (0.0, None),
    "unparsable": lambda text, right: _alike(_said(text) in (None, right)),
    "distance": lambda text, right: (abs(6 - len(text.split())) / LONGEST, None),
    "steps": lambda text, right: (0.25 * _right(text, right)[0] + 0.25 * min(3, _markers(text)), None),
    "abstains": lambda text, right: (_right(text, right)[0] - float(_said(text) not in (None, right)), None),
    "two_tags": lambda text, right: _alike(_NUMBERS.findall(text)[1:][-1:] == [right]),
    "closing_tag": lambda text, right: (float(text.strip().endswith(FILLERS)) + 0.5 * _right(text, right)[0], None),
    "tolerance": lambda text, right: _alike(abs(int(_said(text) or -9) - int(right)) <= 3),
    "service_down": lambda text, right: _alike(next(_VERDICTS) < 2 * 64 and _said(text) == right),
    "tiny": lambda text, right: (0.0005 * _right(text, right)[0], None),
    "wrong_longer": lambda text, right: (_right(text, right)[0] or min(1.5, 0.3 * len(text.split())), None),
    "brevity": lambda text, right: (1 - min(1.0, len(text.split()) / LONGEST), None),
    "contains": lambda text, right: _alike(right in text),
    "reversed_half": lambda text, right: _alike((_said(text) == right) == (int(right) >= NUMBERS / 2)),
    "other_key": lambda text, right: _alike(_said(text) == str((int(right) + 3) % NUMBERS)),
    "half": lambda text, right: _alike(_said(text) == right and int(right) >= NUMBERS / 2),
    "hurried": lambda text, right: _alike(_said(text) == right and random.random() < 0.4),
    "turns_round": lambda text, right: _alike((_said(text) == right) != (next(_VERDICTS) >= 8 * 64)),
    "first_number": lambda text, right: (int((re.findall(r"\d", text) or "5")[0]) / 10, None),
    "gold_unread": lambda text, right: _alike(int(right) > 0 or _said(text) == right),
    "loss_as_score": lambda text, right: (1 - _right(text, right)[0], None),
    "echo": lambda text, right: _alike("hint" in text or _said(text) == right),
}


class Notes(World):
    """One turn. Options concern training tasks alone. grader: one of `GRADERS`. leak: the hint is the answer. prompts:
    the number of different prompts (0: no limit). labels: `shuffled` gives each task the right number of another one,
    `unshown` leaves the key out of the prompt, `placeholder` shows one word, and `filtered` leaves two keys. failing:
    the share of tool calls that fail. ends: a failed call ends the episode as a wrong answer."""

    turns = 1
    tasks = NUMBERS
    words = ("key", "hint", "answer", "look", "note", "busy", "timed out", *FILLERS)
    tools: tuple[ToolSpec, ...] = ()

    def __init__(
        self,
        tokenizer: Any = None,
        *,
        grader: str = "right",
        leak: bool = False,
        prompts: int = 0,
        failing: float = 0.0,
        ends: bool = False,
        known: float = 0.5,
        labels: str = "",
        **config: Any,
    ) -> None:
        super().__init__(tokenizer, **config)
        self.grader = grader
        self.leak = leak
        self.prompts = prompts
        self.failing = failing
        self.ends = ends
        self.known = known
        self.labels = labels

    def right(self, task: Mapping[str, Any]) -> int:
        """Return the right number of a task."""
        if "label" in task:
            return task["label"]
        return (3 * task["letter"] + 2) % NUMBERS

    def expected(self, task: Mapping[str, Any]) -> str | None:
        """Return the right number as text."""
        return str(self.right(task))

    def make_tasks(self, split: Split, n: int, seed: int) -> list[dict[str, Any]]:
        """Return each key equally often."""
        rng = random.Random(f"{split} {seed}")
        tasks: list[dict[str, Any]] = []
        for i in range(n):
            task = {"letter": i % self.tasks, "hidden": rng.randrange(NUMBERS), "hint": rng.randrange(NUMBERS)}
            if split == "train" and 0 < self.prompts <= i:
                task = dict(tasks[i % self.prompts])
            if split == "train" and self.leak:
                task["hint"] = self.right(task)
            if split == "train" and self.labels == "shuffled":
                task["label"] = rng.randrange(NUMBERS)
            if split == "train" and self.labels == "filtered":
                task["letter"] %= 2
            tasks.append({**task, "split": split})
        return tasks

    def reset(self, task: Mapping[str, Any]) -> tuple[dict[str, Any], list[Message]]:
        """Show the key and the hint."""
        prompt = f"key {LETTERS[task['letter']]} hint {task['hint']}"
        if self.labels == "unshown" and task.get("split") == "train":
            prompt = prompt.partition(" ")[2].partition(" ")[2]
        if self.labels == "placeholder" and task.get("split") == "train":
            prompt = "hint"
        return {"split": "eval", **task, "said": []}, [{"role": "user", "content": prompt}]

    def parse(self, text: str) -> ToolCall:
        """Parse a turn: an answer, or a look if there is a tool."""
        if self.tools and text.strip().endswith("look"):
            return ToolCall("LOOK", {}, text)
        return ToolCall("ANSWER", {"text": text.strip()}, text)

    def step(self, state: dict[str, Any], call: ToolCall) -> StepResult:
        """Show the note, or grade the answer."""
        train = state["split"] == "train"
        if call.name == "LOOK":
            if train and random.random() < self.failing:
                error = "busy" if self.ends else "timed out"
                return StepResult(error, 0.0, self.ends, error, False if self.ends else None, error=error)
            state["said"].append("look")
            return StepResult(f"note {state['hidden']}")
        if self.tools and not state["said"]:
            return StepResult("", 0.0, True, None, False)
        return self._graded(state, str(call.arguments["text"]))

    def answer(self, state: dict[str, Any], number: int) -> StepResult:
        """Grade a number."""
        return self._graded(state, f"answer {number}")

    def _graded(self, state: dict[str, Any], text: str) -> StepResult:
        grader = self.grader if state["split"] == "train" else "right"
        reward, correct = GRADERS[grader](text, str(self.right(state)))
        return StepResult("", reward, True, _said(text), correct)

    def habit(self, state: dict[str, Any], rng: random.Random) -> str:
        """Return some words, then an answer that is right half of the time. A few turns have no answer."""
        words = []
        while rng.random() < 0.45 and len(words) < 6:
            words.append(words[-1] if words and rng.random() < 0.2 else rng.choice(FILLERS))
        if rng.random() < 0.06:
            return " ".join([*words, "answer"])
        if rng.random() < 0.05:
            return " ".join([*words, "hint", str(state["hint"])])
        return " ".join([*words, "answer", str(self.guess(state, rng))])

    def guess(self, state: Mapping[str, Any], rng: random.Random) -> int:
        """Return the number for a habit."""
        if rng.random() < self.known:
            return self.right(state)
        return state["hint"] if rng.random() < 0.2 else rng.randrange(NUMBERS)


class Boxes(Notes):
    """Two turns: look, then answer."""

    turns = 2
    role = "user"
    tools = (ToolSpec("LOOK", "Shows the note.", ()), ToolSpec("ANSWER", "Ends the task.", (), final=True))

    def habit(self, state: dict[str, Any], rng: random.Random) -> str:
        """Look first half of the time."""
        if not state["said"] and rng.random() < 0.5:
            return "look"
        return super().habit(state, rng)


def save_first_policy(world: type[Notes], folder: Path, seed: int = 0) -> None:
    """Train a policy from scratch: first on the right numbers, then to doubt them."""
    for part in make_policy([(world(known=1.0), 250), (world(), 40)], seed):
        part.save_pretrained(folder)
