"""Rows of a benchmark, kept in a file: what is known already is not measured again."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


class KeptRows:
    """The rows of a JSON-lines file; each has a `key`, a value of JSON."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.rows: list[dict[str, Any]] = []
        if path.exists():
            self.rows = [json.loads(line) for line in path.read_text().splitlines()]

    def get(self, key: object, measure: Callable[[], Mapping[str, Any]]) -> tuple[dict[str, Any], bool]:
        """The row of this key, and whether it had to be measured."""
        for row in self.rows:
            if row["key"] == key:
                return row, False
        row = {"key": key, **measure()}
        self.rows.append(row)
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        return row, True
