"""Checksums of the files of a folder: `checksums.json` holds the length and SHA-256 of each.

Damage must be found before a file is used. Weights are read again days later, from disks that lose blocks and after
copies that ended early. A flipped bit in a weight is no error to any reader: the model would train on it.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

CHECKSUMS = "checksums.json"


def write_checksums(folder: Path) -> None:
    """Note length and checksum of every file in `folder` (and in folders below it). Raises OSError."""
    files = {str(p.relative_to(folder)): _facts(p) for p in sorted(folder.rglob("*")) if p.is_file()}
    files.pop(CHECKSUMS, None)
    (folder / CHECKSUMS).write_text(json.dumps({"files": files}, indent=1), encoding="utf-8")


def find_damage(folder: Path) -> str | None:
    """Return the first difference from the checksums of a folder, in a few words; None if it is whole."""
    try:
        files = json.loads((folder / CHECKSUMS).read_text(encoding="utf-8"))["files"]
        expected = {str(name): (int(f["bytes"]), str(f["sha256"])) for name, f in files.items()}
    except FileNotFoundError:
        return f"its {CHECKSUMS} is missing"
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return f"its {CHECKSUMS} cannot be read"
    for name, (length, digest) in expected.items():
        try:
            found = _facts(folder / name)
        except FileNotFoundError:
            return f"{name} is missing"
        except OSError as problem:
            return f"{name} cannot be read ({problem.strerror})"
        if found["bytes"] != length:
            return f"{name} has {found['bytes']} bytes and was written with {length}"
        if found["sha256"] != digest:
            return f"{name} is not as it was written"
    return None


def _facts(path: Path) -> dict[str, str | int]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"bytes": file.tell(), "sha256": digest}
