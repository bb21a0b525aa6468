"""Dumps for the tests: small real files of other frameworks (see peer_dumps/README.md), and a cache of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from grpo_tui.engine.imports.opening import open_dump
from grpo_tui.engine.imports.readers import open_reader
from grpo_tui.engine.runs.read.reader import RunReader

PEERS = Path(__file__).parent / "peer_dumps"


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def opened() -> Callable[[Path | str], RunReader]:
    """A reader on a dump, indexed whole."""

    def read(path: Path | str) -> RunReader:
        return open_reader(open_dump(PEERS / path, whole=True).folder)

    return read
