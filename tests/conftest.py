"""For all tests: how long an example takes depends on the machine and says nothing about the code."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("grpo-tui", deadline=None)
settings.load_profile("grpo-tui")
