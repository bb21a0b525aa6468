"""For all tests: one thread a process, so that results do not depend on the number of cores; no hub; no deadlines,
since the time of an example depends on the machine; the settings of a process that the product starts; templates of
model cards that are compiled once; and fewer garbage collections, which take a sixth of the time of an app's test."""

from __future__ import annotations

import gc
import os

from hypothesis import settings

from grpo_tui.engine.launch.children import CPU_SETTINGS

from .repeated import compile_templates_once

SETTINGS = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

os.environ.update(CPU_SETTINGS | SETTINGS | os.environ)  # before torch is loaded
settings.register_profile("grpo-tui", deadline=None)
settings.load_profile("grpo-tui")
compile_templates_once()
gc.set_threshold(50_000)
