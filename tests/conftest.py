"""For all tests: how long an example takes depends on the machine and says nothing about the code, and what trains in a
test's own process has the settings of one that the product starts."""

from __future__ import annotations

import os

from hypothesis import settings

from grpo_tui.engine.launch.children import CPU_SETTINGS

os.environ.update(CPU_SETTINGS | os.environ)
settings.register_profile("grpo-tui", deadline=None)
settings.load_profile("grpo-tui")
