"""Text games: single-player games of TextArena, and Gymnasium environments with text observations.

`pip install 'grpo-tui[textarena]'` or `'grpo-tui[gymnasium]'`. `game` names one: `textarena:GuessTheNumber-v0`,
`gymnasium:my_package/Maze-v0`.
"""

from __future__ import annotations

import random
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import TYPE_CHECKING, Unpack

from ..agent import Message
from ..base import EnvOptions, Split, StepResult
from ..calls import ToolCall, without_thoughts
from ..multi_turn import MultiTurnEnv
from ..seeds import split_seeds
from ..tools import Argument, ToolSpec
from ..trajectory import Display
from ..user_code import one_line
from . import optional

if TYPE_CHECKING:
    from gymnasium import Env

LIBRARIES = ("textarena", "gymnasium")
ACT = "ACT"
"""The tool for numbered actions."""


class TextGameEnv(MultiTurnEnv["Game", Mapping[str, int | str]]):
    """A game of TextArena or Gymnasium. Its rewards are the environment's rewards.

    game: `textarena:NAME` or `gymnasium:NAME`. options: arguments of its `make`. instruction: text before the first
    observation. success_score: the minimum total reward of a won game (None: success is unknown). The whole turn is the
    action. Numbered actions (`Discrete`) are calls of the tool ACT.
    """

    name = "text-game"

    def __init__(
        self,
        tokenizer: object = None,
        *,
        game: str,
        options: Mapping[str, object] | None = None,
        instruction: str = "",
        success_score: float | None = None,
        max_turns: int = 16,
        **config: Unpack[EnvOptions],
    ) -> None:
        super().__init__(tokenizer, max_turns=max_turns, **config)
        self.library, _, self.game = game.partition(":")
        if self.library not in LIBRARIES or not self.game:
            raise ValueError(f'game must be "textarena:NAME" or "gymnasium:NAME", not {game!r}')
        self.options, self.instruction = dict(options or {}), instruction
        self.success_score, self.knows_success = success_score, success_score is not None
        number = self._start(0).actions  # report a wrong name or option now
        if number is not None:
            action = Argument("action", "integer", "the number of an action", minimum=0, below=number)
            self.tools = (ToolSpec(ACT, "Does one thing in the game.", (action,)),)

    def make_tasks(self, split: Split, n: int, seed: int) -> list[dict[str, int | str]]:
        return [{"game": f"{self.library}:{self.game}", "seed": number} for number in split_seeds(split, n, seed)]

    def reset(self, task: Mapping[str, int | str]) -> tuple[Game, list[Message]]:
        game = self._start(int(task["seed"]))
        text = "\n\n".join(part for part in (self.instruction, game.text) if part)
        return game, [Message(role="user", content=text or "Begin.")]

    def explain(self) -> str:
        return super().explain() if self.tools else ""

    def step(self, state: Game, call: ToolCall) -> StepResult:
        action = call.arguments["action"] if self.tools else without_thoughts(call.arguments["text"]).strip()
        text, reward, done = state.act(action)
        state.total += reward
        correct = None if self.success_score is None else state.total >= self.success_score
        try:
            board = str(state.board() or "")
        except Exception:  # games may raise anything, and a failed view must not fail the rollout
            board = ""
        display = (Display("ansi", board),) if board and board not in text else ()
        return StepResult(text, reward, done, str(action) if done else None, correct, display=display)

    def _start(self, seed: int) -> Game:
        game_class = TextArenaGame if self.library == "textarena" else GymnasiumGame
        library = optional(self.library, self.library)
        try:
            return game_class(library, self.game, self.options, seed)
        except ValueError:
            raise
        except Exception as problem:  # registries and games may raise anything
            raise ValueError(f"{self.library} cannot make {self.game}: {one_line(problem)}") from problem


class TextArenaGame:
    """A single-player game of TextArena. Games draw from Python's global random generator, so each keeps its own copy
    of the generator's state."""

    actions: int | None = None
    """The number of actions (None: an action is text)."""
    total = 0.0
    """The sum of the rewards so far."""
    _turn = threading.Lock()

    def __init__(self, library: ModuleType, name: str, options: Mapping[str, object], seed: int) -> None:
        self._random = random.Random(seed).getstate()
        with self._own_random():
            self._env = library.make(name, **options)
            try:
                self._env.reset(num_players=1, seed=seed)
            except AssertionError as problem:
                raise ValueError(f"{name} is not a game for one player: {one_line(problem)}") from problem
            _, text = self._env.get_observation()
        self._read = self.text = str(text)
        self.text = self.text.strip()

    def act(self, action: str | int) -> tuple[str, float, bool]:
        """Return the new part of the game's log, the reward, and whether the game has ended."""
        with self._own_random():
            done, _ = self._env.step(str(action))
            if done:
                rewards, info = self._env.close()
                reason = (info.get(0) or {}).get("reason") if isinstance(info, Mapping) else None
                return str(reason or ""), float((rewards or {}).get(0, 0.0)), True
            _, text = self._env.get_observation()
        before, self._read = self._read, str(text)
        return (self._read.removeprefix(before) or self._read).strip(), 0.0, False

    def board(self) -> object:
        """Return a view of the game for people, possibly coloured. It may raise anything."""
        drawn = getattr(self._env, "get_board_str", None)
        return drawn() if callable(drawn) else None

    @contextmanager
    def _own_random(self) -> Iterator[None]:
        with self._turn:
            outside = random.getstate()
            random.setstate(self._random)
            try:
                yield
            finally:
                self._random = random.getstate()
                random.setstate(outside)


class GymnasiumGame:
    """A Gymnasium environment with text observations."""

    total = 0.0

    def __init__(self, library: ModuleType, name: str, options: Mapping[str, object], seed: int) -> None:
        self._env = library.make(name, **options)
        weakref.finalize(self, _close, self._env)  # it may hold a process, a window or a file
        space = self._env.action_space
        discrete = isinstance(space, library.spaces.Discrete)
        if not discrete and not isinstance(space, library.spaces.Text):
            raise ValueError(f"actions of {name} are {space}; they must be Text or Discrete")
        self.actions: int | None = int(space.n) if discrete else None
        self._first = int(space.start) if discrete else 0
        observation, _ = self._env.reset(seed=seed)
        if not isinstance(observation, str):
            raise ValueError(f"{name} observes {self._env.observation_space}, but a policy reads only text")
        self.text = observation

    def act(self, action: str | int) -> tuple[str, float, bool]:
        full_action = action if isinstance(action, str) else action + self._first
        observation, reward, terminated, truncated, _ = self._env.step(full_action)
        return str(observation), float(reward), bool(terminated or truncated)

    def board(self) -> object:
        return self._env.render() if getattr(self._env, "render_mode", None) == "ansi" else None


def _close(env: Env) -> None:
    with suppress(Exception):  # environments may raise anything
        env.close()


Game = TextArenaGame | GymnasiumGame
