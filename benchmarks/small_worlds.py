"""Small worlds, each for one mechanism, and small policies with habits that the mechanism should change.

A turn is one number, an action of the world. Rewards are 1 for a success and 0 otherwise. Each world defines the habits
of its first policy (`habit`). A model of 50,000 parameters learns them from scratch (`save_policy`), so training takes
seconds.
"""

from __future__ import annotations

import random
import re
import string
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.utils.logging import disable_progress_bar

from benchmarks.policies.tokenizer import train_tokenizer
from grpo_tui.envs.agent import Message
from grpo_tui.envs.base import Split, StepResult
from grpo_tui.envs.calls import ToolCall
from grpo_tui.envs.multi_turn import MultiTurnEnv
from grpo_tui.envs.plugins import optional
from grpo_tui.envs.plugins.text_games import TextArenaGame
from grpo_tui.envs.tools import Argument, ToolSpec

LETTERS = string.ascii_uppercase
DEMONSTRATIONS, BATCH = 200, 64


class World(MultiTurnEnv):
    """Tasks are letters. The state holds the episode so far."""

    turns: ClassVar[int] = 1
    tasks: ClassVar[int] = len(LETTERS)
    words: ClassVar[tuple[str, ...]] = ("door", "empty", "error")
    """Words of its answers and habits, for the tokenizer."""
    role: ClassVar[str] = "tool"
    """The role of its answers in demonstrations."""
    tools = (ToolSpec("TRY", "Tries a number.", (Argument("number", "integer", minimum=0, below=len(LETTERS)),)),)
    answers_misuse = True

    def __init__(self, tokenizer: Any = None, **config: Any) -> None:
        super().__init__(tokenizer, **{"max_turns": self.turns, "prompt_style": "terse", **config})

    def make_tasks(self, split: Split, n: int, seed: int) -> list[dict[str, Any]]:
        """Return each letter equally often, in training and evaluation alike. `hidden` is not shown."""
        rng = random.Random(f"{split} {seed}")
        return [{"letter": i % self.tasks, "hidden": rng.randrange(8)} for i in range(n)]

    def reset(self, task: Mapping[str, Any]) -> tuple[dict[str, Any], list[Message]]:
        """Show only the letter."""
        return {**task, "said": []}, [{"role": "user", "content": f"key {LETTERS[task['letter']]}"}]

    def parse(self, text: str) -> ToolCall:
        """Parse a turn, which is a number."""
        number = text.strip()
        return ToolCall("TRY", {"number": int(number)}, text) if number.isdecimal() else ToolCall(None, {}, text)

    def step(self, state: dict[str, Any], call: ToolCall) -> StepResult:
        """Take a number. A right one ends the episode."""
        number = call.arguments.get("number")
        if not isinstance(number, int) or number not in range(len(LETTERS)):
            return StepResult("error", error=f"{number} is no number of this world")
        result = self.answer(state, number)
        state["said"].append(number)
        return result

    @abstractmethod
    def answer(self, state: dict[str, Any], number: int) -> StepResult:
        """Answer a number."""

    @abstractmethod
    def habit(self, state: dict[str, Any], rng: random.Random) -> int | str:
        """Return the next turn of the first policy."""


def _end(number: int, correct: bool) -> StepResult:
    return StepResult("", float(correct), True, str(number), correct)


class Keys(World):
    """One turn. Each letter has one right number. The policy knows most letters well or hardly at all."""

    turns = 1

    @staticmethod
    def right(letter: int) -> int:
        """Return the number of a letter."""
        return (7 * letter + 3) % len(LETTERS)

    def answer(self, state: dict[str, Any], number: int) -> StepResult:
        """End the episode as right or wrong."""
        return _end(number, number == self.right(state["letter"]))

    def habit(self, state: dict[str, Any], rng: random.Random) -> int:
        """Know ten letters, half-know two, and guess the others."""
        known = 0.98 if state["letter"] < 10 else 0.4 if state["letter"] < 12 else 0.08
        return self.right(state["letter"]) if rng.random() < known else rng.randrange(len(LETTERS))


class Doors(World):
    """Four doors in a row, each with one of eight numbers. Success is only behind the last one."""

    turns = 9
    tasks = 1
    code = (3, 6, 1, 4)

    def answer(self, state: dict[str, Any], number: int) -> StepResult:
        """Move to the next door, or stay."""
        state["door"] = door = state.get("door", 0) + (number == self.code[state.get("door", 0)])
        return _end(number, True) if door == len(self.code) else StepResult(f"door {door}")

    def habit(self, state: dict[str, Any], rng: random.Random) -> int:
        """Return a random number."""
        return rng.randrange(8)


class Long(Doors):
    """Five doors in a row, each with one of four numbers, and twelve turns."""

    turns = 12
    code = (3, 0, 2, 1, 2)

    def habit(self, state: dict[str, Any], rng: random.Random) -> int:
        """Return one of four numbers at random."""
        return rng.randrange(4)


class Lake(World):
    """TextArena's FrozenLake on one map with three holes. The path takes six steps, and there are ten turns.

    A fall earns the share of the path covered. The agent reads its moves but not the board.
    """

    turns = 10
    tasks = 1
    words = ("You moved up down left right to position", "You tried to move", "but hit a wall", "error")
    moves = ("up", "down", "left", "right")

    def reset(self, task: Mapping[str, Any]) -> tuple[dict[str, Any], list[Message]]:
        state, messages = super().reset(task)
        return {**state, "game": TextArenaGame(optional("textarena", "textarena"), "FrozenLake-v0", {}, 0)}, messages

    def answer(self, state: dict[str, Any], number: int) -> StepResult:
        """Take a step in the game."""
        if number >= len(self.moves):
            return StepResult("error", error=f"{number} is no direction")
        text, reward, done = state["game"].act(f"[{self.moves[number]}]")
        move = re.search(r"You (moved|tried)[^.!]*", text)
        return StepResult(move[0] if move else text, reward, done, str(number), reward == 1.0 if done else None)

    def habit(self, state: dict[str, Any], rng: random.Random) -> int:
        """Move mostly down or right, regardless of holes."""
        return rng.choice([0, 2, *[1, 3] * 3])


class Boxes(World):
    """An object is hidden in one of eight boxes, which varies by task. There are eight turns."""

    turns = 8
    tasks = 1

    def answer(self, state: dict[str, Any], number: int) -> StepResult:
        """Report the box as found or empty."""
        return _end(number, True) if number == state["hidden"] else StepResult("empty")

    def habit(self, state: dict[str, Any], rng: random.Random) -> int:
        """Look again in the same box, mostly."""
        return state["said"][-1] if state["said"] and rng.random() < 0.7 else rng.randrange(8)


class Misuse(Keys):
    """Numbers above 25 do not exist in this world but cost nothing: there are enough turns to try them first."""

    turns = 6
    tasks = 6

    def habit(self, state: dict[str, Any], rng: random.Random) -> int:
        """Try mostly a number that does not exist."""
        if rng.random() < 0.6:
            return 40 + rng.randrange(8)
        return self.right(state["letter"]) if rng.random() < 0.7 else rng.randrange(len(LETTERS))


def save_policy(world: World, folder: Path, seed: int) -> None:
    """Train a policy with `make_policy` and save it."""
    for part in make_policy([(world, DEMONSTRATIONS)], seed):
        part.save_pretrained(folder)


def make_policy(lessons: Sequence[tuple[World, int]], seed: int) -> tuple[Any, Any]:
    """Train a model from scratch to act as `World.habit`. Returns it and its tokenizer.

    lessons: worlds with the same words, each with its number of steps.
    """
    disable_progress_bar()
    rng = random.Random(seed)
    torch.manual_seed(seed)
    texts = [f"key {letter}" for letter in LETTERS] + [*lessons[0][0].words, *map(str, range(10))]
    tokenizer: Any = train_tokenizer(texts)
    model: Any = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=48,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=12,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for world in (world for world, steps in lessons for _ in range(steps)):
        rows = [_demonstration(world, tokenizer, rng) for _ in range(BATCH)]
        width = max(len(ids) for ids, _ in rows)
        ids = torch.full((BATCH, width), tokenizer.pad_token_id)
        labels = torch.full((BATCH, width), -100)
        for i, (tokens, said) in enumerate(rows):
            ids[i, : len(tokens)] = torch.tensor(tokens)
            labels[i, : len(tokens)] = torch.tensor([t if own else -100 for t, own in zip(tokens, said, strict=True)])
        loss = model(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, tokenizer


def _demonstration(world: World, tokenizer: Any, rng: random.Random) -> tuple[list[int], list[bool]]:
    """Sample an episode of habits. Returns its tokens, and which of them the policy writes."""
    state, messages = world.reset(
        {"letter": rng.randrange(world.tasks), "hidden": rng.randrange(8), "hint": rng.randrange(8)}
    )
    tokens: list[int] = []
    own: list[bool] = []

    def add(text: str, said: bool) -> None:
        found = tokenizer.encode(text, add_special_tokens=False)
        tokens.extend(found)
        own.extend([said] * len(found))

    add("".join(f"<|user|>{m.get('content')}<|end|>" for m in messages) + "<|assistant|>", False)
    for turn in range(world.max_turns):
        said = str(world.habit(state, rng))
        add(f"{said}<|end|>", True)
        result = world.step(state, world.parse(said))
        if result.done:
            break
        if turn + 1 < world.max_turns:
            add(f"<|{world.role}|>{result.observation}<|end|><|assistant|>", False)
    return tokens, own
