"""What the first paint of a dump waits for."""

from __future__ import annotations

import subprocess
import sys


def test_opening_loads_nothing_that_only_the_diagnosis_needs():
    code = (
        "import sys, grpo_tui.engine.imports.opening; print(sorted({'pydantic', 'numpy', 'torch'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
