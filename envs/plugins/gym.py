"""Tasks from reasoning-gym (procedural, offline) as an environment: `pip install 'grpo-tui[reasoning-gym]'`.

Either single-turn, with the whole turn as the answer, or with a scratch pad, where calls of NOTE may precede ANSWER.
"""

from __future__ import annotations

import difflib
import re
import threading
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Unpack

from ..agent import Message
from ..base import Demonstrator, EnvOptions, FixedTurns, Split, StepResult
from ..calls import ToolCall, format_call, without_thoughts
from ..extraction import ENVIRONMENT, make_extractor
from ..multi_turn import MultiTurnEnv
from ..seeds import split_of
from ..tools import ANSWER, Argument, ToolSpec
from . import optional

if TYPE_CHECKING:
    from reasoning_gym.dataset import ProceduralDataset

SIZE = 2**20
"""Number of tasks that a data set can generate per seed."""

NOTE = ToolSpec("NOTE", "Writes something down before answering.", (Argument("text", "string", "anything"),))


class ReasoningGymEnv(MultiTurnEnv[dict[str, object], Mapping[str, int | str]]):
    """One data set of reasoning-gym. The reward is the data set's own score, 0 to 1.

    dataset: its name there, such as `chain_sum`. options: its settings, such as `{"num_digits": 2}`. scratch_pad: the
    answer is a call of ANSWER, and calls of NOTE may precede it. Otherwise there is one turn, and the answer is the
    text between `<answer>` tags, or the whole turn. instruction: a sentence after the question. answer: extract the
    answer by a form of `envs/extraction.py` instead, such as `last_number` or `boxed`.

    Several data sets score an answer by letting sympy evaluate it. Therefore long answers and answers that contain
    `__` are wrong without evaluation, and so are answers that cannot be scored.
    """

    name = "reasoning-gym"

    def __init__(
        self,
        tokenizer: object = None,
        *,
        dataset: str = "chain_sum",
        options: Mapping[str, object] | None = None,
        scratch_pad: bool = False,
        instruction: str = "",
        answer: str = ENVIRONMENT,
        max_turns: int | None = None,
        **config: Unpack[EnvOptions],
    ) -> None:
        super().__init__(tokenizer, max_turns=max_turns or (4 if scratch_pad else 1), **config)
        self.dataset = dataset
        self.options = dict(options or {})
        self.scratch_pad = scratch_pad
        self.instruction = instruction
        self.extract = make_extractor(answer)
        self.tools = (NOTE, ANSWER) if scratch_pad else ()
        self._data = cache(self._make_data)
        self._entry = lru_cache(20_000)(self._make_entry)
        self._lock = threading.Lock()
        self._data(0)  # report a wrong name or option now, not in the first rollout

    # ------------------------------------------------------------------------------------------------ tasks

    def make_tasks(self, split: Split, n: int, seed: int) -> list[dict[str, int | str]]:
        """Return `n` tasks. The hash of a question decides its split, so the splits share no questions.

        Raises ValueError if the data set has too few distinct questions.
        """
        tasks = []
        for index in range(min(SIZE, 200 + 40 * n)):
            entry = self._entry(seed, index)
            if split_of(str(entry["question"])) == split:
                tasks.append({"seed": seed, "index": index, "answer": str(entry["answer"])})
                if len(tasks) == n:
                    return tasks
        raise ValueError(f"{self.dataset} generated only {len(tasks)} of {n} {split} tasks; ask for fewer")

    def reset(self, task: Mapping[str, int | str]) -> tuple[dict[str, object], list[Message]]:
        entry = self._entry(int(task["seed"]), int(task["index"]))
        parts = [str(entry["question"]), self.instruction]
        if self.scratch_pad:
            parts.append("NOTE(text), ANSWER(text)")
        content = "\n".join(p for p in parts if p)
        return entry, [{"role": "user", "content": content}]

    def explain(self) -> str:
        if self.scratch_pad:
            return super().explain()
        return "Think if you like, and write your answer between <answer> and </answer>."

    def parse(self, text: str) -> ToolCall:
        if self.scratch_pad:
            return super().parse(text)
        if self.extract is not None:
            return ToolCall("ANSWER", {"text": self.extract(text) or ""}, text)
        tagged = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
        return ToolCall("ANSWER", {"text": (tagged[-1] if tagged else without_thoughts(text)).strip()}, text)

    def step(self, state: dict[str, object], call: ToolCall) -> StepResult:
        text = call.arguments["text"]
        if call.name == "NOTE":
            return StepResult("noted")
        score = self._score(text.strip(), state)
        correct = score >= 0.999  # reasoning-gym gives partial credit
        return StepResult("correct" if correct else "wrong", score, True, text.strip(), correct)

    def routes(self, task: Mapping[str, int | str]) -> Sequence[str]:
        return ("right", "give_up")

    def demonstrate(self, task: Mapping[str, int | str], route: str = "right", seed: int = 0) -> Demonstrator:
        if route not in self.routes(task):
            raise ValueError(f"ReasoningGymEnv has no route {route!r}, only right, give_up")
        answer = str(self._entry(int(task["seed"]), int(task["index"]))["answer"])
        text = {"text": "I do not know" if route == "give_up" else answer}
        if not self.scratch_pad:
            return FixedTurns(text["text"])
        return FixedTurns(format_call("NOTE", text), format_call("ANSWER", text))

    # ------------------------------------------------------------------------------------------------ data

    def _score(self, answer: str, entry: dict[str, object]) -> float:
        if len(answer) > 10_000 or "__" in answer:
            return 0.0
        try:
            score = float(self._data(0).score_answer(answer, entry))
        except Exception:  # some scorers raise on malformed answers
            return 0.0
        return min(1.0, max(0.0, score)) if score == score else 0.0

    def _make_entry(self, seed: int, index: int) -> dict[str, object]:
        with self._lock:
            return self._data(seed)[index]

    def _make_data(self, seed: int) -> ProceduralDataset:
        reasoning_gym = optional("reasoning_gym", "reasoning-gym")
        try:
            return reasoning_gym.create_dataset(self.dataset, seed=seed, size=SIZE, **self.options)
        except (TypeError, ValueError, AssertionError) as problem:
            known = reasoning_gym.factory.DATASETS
            if self.dataset in known:
                raise ValueError(f"{self.dataset} does not accept the options {self.options}: {problem}") from problem
            near = difflib.get_close_matches(self.dataset, known, 1, 0.5)
            hint = f'; did you mean "{near[0]}"?' if near else ""
            raise ValueError(f'reasoning-gym has no data set "{self.dataset}"{hint}') from problem
