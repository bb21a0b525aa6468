"""The user's options for reading a dump."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import DumpError


@dataclass(frozen=True)
class Options:
    """Key names by role (`reward` → `score`), and files with the user's own formats."""

    keys: Mapping[str, str] = field(default_factory=dict)
    importers: tuple[str, ...] = ()

    @classmethod
    def of(cls, maps: Sequence[str] = (), importers: Sequence[str] = ()) -> Options:
        """Parse `reward=score` and paths. Raises a DumpError that states the right form."""
        keys = {}
        for item in maps:
            from .formats.tables import ROLES  # here: opening a dump without `--map` loads no formats

            role, equals, key = item.partition("=")
            if not equals or not key or role.strip() not in ROLES:
                raise DumpError(f"--map {item}: write ROLE=KEY with ROLE one of {', '.join(ROLES)}")
            keys[role.strip()] = key.strip()
        return cls(keys, tuple(str(Path(p).expanduser().absolute()) for p in importers))

    def to_json(self) -> dict[str, object]:
        return {"keys": dict(self.keys), "importers": list(self.importers)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Options:
        return cls(dict(data.get("keys") or {}), tuple(data.get("importers") or ()))
