"""Keys that a person types faster than the app answers reach the prompt, in their order."""

from __future__ import annotations

import random
import time
from pathlib import Path

from .test_terminal import terminal

ROUNDS = 30


def test_the_order_of_keys_does_not_depend_on_their_pauses(run: Path) -> None:
    at_random = random.Random(0)
    with terminal(run) as screen:
        screen.see("1 of 320")
        for _ in range(ROUNDS):
            word = "".join(at_random.sample("abcdefghijklmnopqrstuvwxyz", 6))
            for key in f"/{word}\r":
                screen.press(key)
                time.sleep(at_random.uniform(0.0, 0.004))
            screen.see(f"“{word}”", within=10.0)
            screen.press("c")
            screen.see("1 of 320")
