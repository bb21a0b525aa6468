"""People's notes and labels on rollouts, one line each, in a file of the run.

Notes on a dump, or on a run on another machine, are in the user's data folder, because the cache may be deleted and we
never write into the dump's folder. A note belongs to a rollout id. The file is append-only: the last line of an id
wins, an empty text removes the note, and a torn line loses only itself.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ...configs.location import user_folder
from .durable import json_object, read_as, read_json
from .paths import RUN_FILE
from .remote.address import address_of

NOTES_FILE = "notes.jsonl"
MAX_TEXT = 4000
"""Maximum characters of one note."""
_LABEL = re.compile(r"(?:\A|(?<=\s))#([\w.:/-]+)")


@dataclass(frozen=True)
class Note:
    """A person's note on a rollout. Words that begin with `#` are its labels."""

    id: str
    text: str
    by: str = ""
    time: float = 0.0

    @property
    def labels(self) -> tuple[str, ...]:
        """`("hack",)` of `#hack the answer was copied`."""
        return tuple(dict.fromkeys(_LABEL.findall(self.text)))

    def to_json(self) -> dict[str, object]:
        return {"text": self.text, "labels": list(self.labels), "by": self.by, "time": self.time}


class Notes:
    """The notes of one run. `read` reloads the file if it has changed."""

    def __init__(self, run_dir: Path) -> None:
        self.path = place_of(run_dir)
        self._seen: tuple[int, int] | None = None
        self._notes: dict[str, Note] = {}

    def read(self) -> Mapping[str, Note]:
        """Return the notes by rollout id, skipping damaged lines."""
        try:
            stat = self.path.stat()
            seen = (stat.st_size, stat.st_mtime_ns)
            if seen != self._seen:
                self._notes, self._seen = _parsed(self.path.read_bytes()), seen
        except OSError:
            self._seen, self._notes = None, {}
        return self._notes

    def put(self, id_: str, text: str) -> None:
        """Set the note of a rollout; an empty text removes it. Raises OSError."""
        note_text = " ".join(text.split())[:MAX_TEXT]
        line = {"id": id_, "text": note_text, "by": _user(), "time": time.time()}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a+b") as file:  # a single write, so that two people do not tear each other's lines
            file.seek(max(0, file.tell() - 1))
            torn = file.read() not in (b"", b"\n")
            file.write(b"\n" * torn + json.dumps(line).encode() + b"\n")


def place_of(run_dir: Path) -> Path:
    """Return the file of a run's notes. For a dump or remote run: `$XDG_DATA_HOME/grpo-tui/notes/<name>-….jsonl`."""
    run = read_json(run_dir / RUN_FILE)
    facts = run.get("facts")
    dump = facts.get("dump") if run.get("mode") == "dump" and isinstance(facts, dict) else None
    dump = dump or address_of(run_dir)
    if not isinstance(dump, str):
        return run_dir / NOTES_FILE
    digest = hashlib.blake2b(dump.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()
    return user_folder("XDG_DATA_HOME", ".local/share") / "notes" / f"{Path(dump).name[:80]}-{digest}.jsonl"


def _parsed(data: bytes) -> dict[str, Note]:
    found: dict[str, Note] = {}
    for line in data.split(b"\n"):
        if (note := read_as(Note, json_object(line))) is not None:
            found.pop(note.id, None)
            if note.text:
                found[note.id] = note
    return found


def _user() -> str:
    import getpass  # local import: reading notes does not need it

    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return ""
