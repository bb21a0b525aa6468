"""A busy machine makes single examples slow; that is no failure. And the HTTP server that several files ask."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from .living import Lives
from .world import World

settings.register_profile("online", deadline=None, max_examples=40)
settings.load_profile("online")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("http"))
    yield made
    made.close()


@pytest.fixture(scope="session")
def lives() -> Iterator[Lives]:
    program = Lives()
    yield program
    program.close()


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, tokens=("other", "secret"))
    yield made
    made.close()
