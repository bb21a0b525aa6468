"""Games of TextArena and Gymnasium through one adapter."""

from __future__ import annotations

import random
import re
import string
from typing import Any, ClassVar

import pytest

from grpo_tui.envs.loading import EnvLoadError, make_env
from grpo_tui.envs.plugins.text_games import TextGameEnv

from .scripts import ByteAgent

gymnasium = pytest.importorskip("gymnasium", reason="needs the extra gymnasium")


class Corridor(gymnasium.Env):
    """Walk right to the end. words: actions are text."""

    open: ClassVar[list[int]] = []
    """1 for each that was made, -1 for each that was closed."""

    def __init__(self, length: int = 3, words: bool = False, observes: str = "text", step: float = 0.0) -> None:
        self.length, self.observes, self.each = length, observes, step
        self.open.append(1)
        self.action_space = gymnasium.spaces.Text(10) if words else gymnasium.spaces.Discrete(2, start=1)
        self.observation_space = gymnasium.spaces.Text(100, charset=string.printable)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = int(self.np_random.integers(0, 2))
        return (f"place {self.place} of {self.length}" if self.observes == "text" else self.place), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.place += 1 if action in (2, "right") else -1
        done = self.place >= self.length
        return f"place {self.place}", float(done) or self.each, done, False, {}

    def close(self) -> None:
        self.open.append(-1)


gymnasium.register("Corridor-v0", Corridor)


def test_text_actions_of_gymnasium() -> None:
    env = TextGameEnv(game="gymnasium:Corridor-v0", options={"words": True, "length": 2}, success_score=1.0)
    (task,) = env.make_tasks("train", 1, seed=0)
    agent = ByteAgent(lambda row, turn, seen: "right" if row == 0 else "left")
    won, lost = env.run_trial([task], agent, 2)["trajectories"]
    assert won.correct is True and won.env_reward == 1.0 and won.steps[-1].observation == "place 2"
    assert lost.correct is False and lost.stop_reason == "max_turns"


def test_numbered_actions_are_a_tool() -> None:
    env = TextGameEnv(game="gymnasium:Corridor-v0")
    turns = ['{"name": "ACT", "arguments": {"action": 2}}', '{"name": "ACT", "arguments": {"action": 1}}']
    agent = ByteAgent(lambda row, turn, seen: turns[min(turn, 1)])
    (won,) = env.run_trial([{"seed": 1}], agent, 1)["trajectories"]
    assert won.steps[0].error == "action 2 >= 2"
    assert won.env_reward == 1.0


@pytest.mark.parametrize(("score", "correct"), [(None, None), (0.4, True), (0.6, False)])
def test_a_limit_ends_a_game_with_its_score(score: float | None, correct: bool | None) -> None:
    env = TextGameEnv(
        game="gymnasium:Corridor-v0", options={"words": True, "step": 0.25}, success_score=score, max_turns=2
    )
    (ended,) = env.run_trial([{"seed": 1}], ByteAgent(lambda *_: "left"), 1)["trajectories"]
    assert ended.stop_reason == "max_turns" and ended.env_reward == 0.5 and ended.correct is correct


def test_games_of_gymnasium_are_closed_after_their_rollouts() -> None:
    Corridor.open.clear()
    env = TextGameEnv(game="gymnasium:Corridor-v0", options={"words": True})
    env.run_trial([{"seed": 1}], ByteAgent(lambda *_: "right"), 3)
    assert len(Corridor.open) == 8 and sum(Corridor.open) == 0


def test_a_thought_is_no_part_of_an_action() -> None:
    env = TextGameEnv(game="gymnasium:Corridor-v0", options={"words": True, "length": 2}, success_score=1.0)
    agent = ByteAgent(lambda *_: "<think>\nleft or right?\n</think>\n\nright")
    (won,) = env.run_trial([{"seed": 1}], agent, 1)["trajectories"]
    assert won.correct is True


def test_a_game_of_textarena_is_the_same_for_a_seed_whatever_else_draws() -> None:
    pytest.importorskip("textarena", reason="needs the extra textarena")
    env = TextGameEnv(game="textarena:GuessTheNumber-v0")
    task = env.make_tasks("train", 1, seed=0)[0]

    def script(row: int, turn: int, seen: str | None) -> str:
        random.random()
        low, high = [1] * 4, [20] * 4
        for number, way in re.findall(r"\[(\d+)\]\n\[GAME\] The target number is (\w+)", "\n".join(log[row])):
            low[row], high[row] = (int(number) + 1, high[row]) if way == "higher" else (low[row], int(number) - 1)
        return f"[{(low[row] + high[row]) // 2}]"

    log: list[list[str]] = [[] for _ in range(2)]
    play = ByteAgent(lambda row, turn, seen: (log[row].append(seen or ""), script(row, turn, seen))[1])
    first, second = env.run_trial([task], play, 2)["trajectories"]
    assert [s.observation for s in first.steps] == [s.observation for s in second.steps]
    assert first.env_reward == 1.0 and first.stop_reason == "answer"
    assert "guess the number" in first.prompt.lower() and first.prompt not in first.steps[0].observation


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"game": "chess"}, "textarena:NAME"),
        ({"game": "gymnasium:Nowhere-v0"}, "Nowhere"),
        ({"game": "gymnasium:CartPole-v1"}, "observes|pygame"),
        ({"game": "gymnasium:Corridor-v0", "options": {"observes": "numbers"}}, "only text"),
        ({"game": "gymnasium:Corridor-v0", "options": {"colour": 1}}, "colour"),
        ({"game": "textarena:TicTacToe-v0"}, "one player"),
        ({"game": "textarena:NoGame-v0"}, "NoGame"),
    ],
)
def test_what_cannot_be_played_is_one_sentence(config: dict[str, Any], said: str) -> None:
    pytest.importorskip("textarena", reason="needs the extra textarena")
    with pytest.raises(EnvLoadError, match=said) as raised:
        make_env("grpo_tui.envs.plugins.text_games.TextGameEnv", config)
    assert "\n" not in str(raised.value)
