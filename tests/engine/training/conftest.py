import pytest

from tests.repeated import lighten_trainings


@pytest.fixture(scope="session", autouse=True)
def _light():
    import grpo_tui.engine.training.rft

    assert grpo_tui.engine.training.rft
    lighten_trainings()
