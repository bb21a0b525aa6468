"""What a viewer reads of this room loads nothing heavy."""

from __future__ import annotations

import subprocess
import sys


def test_explaining_rewards_needs_no_torch():
    code = """
import sys
import grpo_tui.rewards, grpo_tui.rewards.breakdown, grpo_tui.rewards.penalties, grpo_tui.rewards.metrics
import grpo_tui.rewards.advantages, grpo_tui.rewards.diagnosis, grpo_tui.rewards.detectors
print(sorted({"torch", "numpy", "transformers", "peft", "trl", "wandb"} & set(sys.modules)))
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
