import gc

import pytest


@pytest.fixture(scope="session", autouse=True)
def _small_heap():
    """Accelerate collects garbage whenever a training starts; torch's own objects need not be looked at each time."""
    import grpo_tui.engine.training.rft

    assert grpo_tui.engine.training.rft
    gc.freeze()
