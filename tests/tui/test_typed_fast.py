"""Keys that a person types faster than the app answers reach the prompt, in their order."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from .test_terminal import terminal


def test_a_long_text_arrives_at_once_without_bracketed_paste(run: Path) -> None:
    with terminal(run) as screen:
        screen.see("1 of 320")
        screen.press("/")
        screen.see("Search all trajectories")
        screen.press("one two\r" * 2_500 + "the end")
        screen.see("one two␊the end", within=8.0)  # key by key, it takes a minute
        screen.press("\x1b[27u")
        screen.see("1 of 320", "enter open")


@pytest.mark.parametrize("rounds", [12, pytest.param(60, marks=pytest.mark.stress)])
def test_the_order_of_keys_does_not_depend_on_their_pauses(run: Path, rounds: int) -> None:
    at_random = random.Random(0)
    with terminal(run) as screen:
        screen.see("1 of 320")
        for _ in range(rounds):
            word = "".join(at_random.sample("abcdefghijklmnopqrstuvwxyz", 6))
            for key in f"/{word}\r":
                screen.press(key)
                time.sleep(at_random.uniform(0.0, 0.004))
            screen.see(f"“{word}”", within=10.0)
            screen.press("c")
            screen.see("1 of 320")
