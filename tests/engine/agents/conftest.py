import pytest

from tests.repeated import lighten_trainings


@pytest.fixture(scope="session", autouse=True)
def _light():
    lighten_trainings()
