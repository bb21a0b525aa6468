"""The app on a dump. A process of its own opens it, begun before this one loads anything: both cost about the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...engine.imports.behind import Opened, Opening
from .own_importers import own_importers

PLAIN = {"keys": {}, "importers": []}
"""`Options.to_json()` of a dump that nothing is said about; asking `Options` would load what reads files."""


def open_dumped(runs_dir: Path, reference: str, maps: Sequence[str] = (), importers: Sequence[str] = ()) -> None:
    """Open the app when the first rows are there; the process that reads them goes on behind it and follows what grows.
    What cannot be opened ends the command with one line."""
    options = PLAIN
    if maps or importers or own_importers():
        from .dumps import options_of

        options = options_of(maps, importers).to_json()
    with Opening(reference, options) as opening:
        from ..app.app import run_app
        from ..app.destinations import Trajectories
        from ..text import literal
        from .common import fail
        from .dumps import opened_dump

        dump = opening.opened()
        if isinstance(dump, str):
            fail(literal(dump))
        if dump is None:
            dump = opened_dump(reference, maps, importers, whole=False)[1]
        run_app(runs_dir, Trajectories(dump.folder), greeting="\n".join(greeting(dump)))


def greeting(dump: Opened) -> list[str]:
    """What is said over the first screen: what was recognised, and what was skipped."""
    from .dumps import told

    return [text for text in told(dump.summary) if not text.startswith("not in ")][:4]
