"""Earlier experiences by embedding. The nearest neighbours of a new one join its vote with their answers.

The embedding only covers tokens that the agent did not write, so it compares questions and observations, not the
wording of answers.
"""

from __future__ import annotations

import io
import threading
import zipfile
import zlib
from collections import deque
from pathlib import Path

import numpy as np

from ...runs.durable import replace_file
from ...runs.learning import NeighbourVote

NEIGHBOUR_WEIGHT = 0.5
"""The weight of a neighbour's vote at similarity 1. A candidate's vote has weight 1."""
MIN_SIMILARITY = 0.995
"""The minimum cosine similarity of a neighbour."""


class ExperienceBuffer:
    """Stores the last `capacity` unit vectors with their answers. Search is exact. 4096 × 896 float32 take 14 MiB."""

    def __init__(self, capacity: int = 4096) -> None:
        self.capacity = capacity
        self._vectors = np.zeros((0, 0), np.float32)
        self._known: deque[tuple[str, str]] = deque(maxlen=capacity)
        """Ids and answers, oldest first. The vector of number n (counted in `added`) is row n % capacity."""
        self.added = 0
        """Number of experiences added so far."""
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._known)

    def add(self, id: str, embedding: np.ndarray, answer: str) -> None:
        """Store an experience. A full buffer drops the oldest. Zero and NaN vectors are ignored."""
        unit = _unit(embedding)
        if unit is None:
            return
        with self._lock:
            if self._vectors.shape[1] != len(unit):
                self._vectors = np.zeros((self.capacity, len(unit)), np.float32)
                self._known.clear()
            self._vectors[self.added % self.capacity] = unit
            self._known.append((id, answer))
            self.added += 1

    def _rows(self) -> np.ndarray:
        """Return the row of each stored experience, oldest first."""
        return np.arange(self.added - len(self._known), self.added) % self.capacity

    def neighbours(self, embedding: np.ndarray, k: int, min_similarity: float = MIN_SIMILARITY) -> list[NeighbourVote]:
        """Return the k most similar experiences with cosine ≥ `min_similarity`, most similar first. The weight of each
        is its similarity times `NEIGHBOUR_WEIGHT`.
        """
        unit = _unit(embedding)
        with self._lock:
            if unit is None or self._vectors.shape[1] != len(unit):
                return []
            similarity = (self._vectors @ unit)[self._rows()]
            best = np.argsort(-similarity, kind="stable")[:k]
            found = [(*self._known[i], float(similarity[i])) for i in best]
        return [NeighbourVote(id_, text, NEIGHBOUR_WEIGHT * cos) for id_, text, cos in found if cos >= min_similarity]

    def save(self, path: Path) -> None:
        """Write the buffer to an `.npz` file, atomically."""
        buffer = io.BytesIO()
        with self._lock:
            ids, answers = zip(*self._known, strict=True) if self._known else ((), ())
            np.savez_compressed(
                buffer,
                vectors=self._vectors[self._rows()] if self._known else self._vectors[:0],
                ids=np.array(ids, dtype=np.str_),
                answers=np.array(answers, dtype=np.str_),
            )
        replace_file(path, buffer.getbuffer())

    def load(self, path: Path) -> None:
        """Read a saved file. Raises ValueError or OSError for a damaged file (each array has a CRC-32)."""
        try:
            with np.load(path, allow_pickle=False) as data:
                vectors, ids, answers = data["vectors"], data["ids"], data["answers"]
        except (zipfile.BadZipFile, zlib.error, KeyError, EOFError, TypeError, AttributeError, ValueError) as error:
            # NumPy's own message is about pickles and how to load them unsafely.
            raise ValueError(f"{path} is damaged") from error
        if vectors.ndim != 2 or not len(vectors) == len(ids) == len(answers):
            raise ValueError(f"{path} is not an experience buffer")
        for row in zip(ids, vectors, answers, strict=True):
            self.add(str(row[0]), row[1], str(row[2]))


def _unit(embedding: np.ndarray) -> np.ndarray | None:
    vector = np.asarray(embedding, np.float32).reshape(-1)
    norm = float(np.linalg.norm(vector))
    return vector / norm if np.isfinite(norm) and norm > 0 else None
