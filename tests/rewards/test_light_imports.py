"""What a viewer reads of this room loads nothing heavy."""

from __future__ import annotations

import subprocess
import sys


def test_explaining_rewards_needs_no_torch():
    code = """
import sys
import grpo_tui.rewards, grpo_tui.rewards.breakdown, grpo_tui.rewards.penalties, grpo_tui.rewards.moments
import grpo_tui.rewards.metrics, grpo_tui.rewards.diagnosis, grpo_tui.rewards.detectors
from grpo_tui.rewards import Penalty, PenaltyRule
print(sorted({"torch", "numpy", "transformers", "peft", "trl", "wandb"} & set(sys.modules)))
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_what_the_room_offers_can_be_had_by_name():
    import grpo_tui.rewards as rewards

    for name in rewards.__all__:
        assert getattr(rewards, name).__name__ == name
