"""Earlier experiences by embedding. The answers of those nearest to a new one join its vote.

The embedding covers the tokens that the agent did not write, so it compares questions and observations, not the wording
of answers.
"""

from __future__ import annotations

import io
import threading
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...runs.durable import replace_file
from ..voting import Neighbour

NEIGHBOUR_WEIGHT = 0.5
"""The vote of a neighbour at similarity 1; a candidate's vote counts 1."""
MIN_SIMILARITY = 0.995
"""The least cosine similarity of a neighbour."""


@dataclass(frozen=True)
class Match:
    """A stored experience and its cosine similarity."""

    id: str
    answer: str
    similarity: float


class ExperienceBuffer:
    """A ring of `capacity` unit vectors with answers, with exact search.

    One float32 array grows to [capacity, D]; 4096 × 896 take 14 MiB.
    """

    def __init__(self, capacity: int = 4096) -> None:
        self.capacity = capacity
        self._vectors = np.zeros((0, 0), np.float32)
        self._ids: list[str] = []
        self._answers: list[str] = []
        self._next = 0
        self.added = 0
        """Number of experiences added so far."""
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, id: str, embedding: np.ndarray, answer: str) -> None:
        """Store an experience; a full buffer drops the oldest. Zero and NaN vectors are ignored."""
        unit = _unit(embedding)
        if unit is None or self.capacity < 1:
            return
        with self._lock:
            self.added += 1
            if self._vectors.shape[1] != unit.shape[0]:
                self._vectors = np.zeros((0, unit.shape[0]), np.float32)
                self._ids, self._answers, self._next = [], [], 0
            if len(self._ids) < self.capacity:
                if len(self._ids) == len(self._vectors):
                    room = min(max(64, 2 * len(self._ids)), self.capacity)
                    grown = np.zeros((room, unit.shape[0]), np.float32)
                    grown[: len(self._ids)] = self._vectors[: len(self._ids)]
                    self._vectors = grown
                self._vectors[len(self._ids)] = unit
                self._ids.append(id)
                self._answers.append(answer)
            else:
                self._vectors[self._next] = unit
                self._ids[self._next], self._answers[self._next] = id, answer
                self._next = (self._next + 1) % self.capacity

    def nearest(self, embedding: np.ndarray, k: int, min_similarity: float = -1.0) -> list[Match]:
        """Return the k most similar experiences with cosine ≥ `min_similarity`, the most similar first."""
        unit = _unit(embedding)
        with self._lock:
            n = len(self._ids)
            if unit is None or n == 0 or k < 1 or self._vectors.shape[1] != unit.shape[0]:
                return []
            similarity = self._vectors[:n] @ unit
            k = min(k, n)
            best = np.argpartition(-similarity, k - 1)[:k]
            best = best[np.argsort(-similarity[best], kind="stable")]
            return [
                Match(self._ids[i], self._answers[i], float(similarity[i]))
                for i in best
                if similarity[i] >= min_similarity
            ]

    def neighbours(self, embedding: np.ndarray, k: int) -> list[Neighbour]:
        """Return the k nearest experiences as voters. Each counts its similarity times `NEIGHBOUR_WEIGHT`."""
        nearest = self.nearest(embedding, k, MIN_SIMILARITY)
        return [Neighbour(m.answer, NEIGHBOUR_WEIGHT * m.similarity, m.id) for m in nearest]

    def save(self, path: Path) -> None:
        """Write the buffer to an `.npz` file, atomically."""
        written = io.BytesIO()
        with self._lock:
            n = len(self._ids)
            np.savez_compressed(
                written,
                vectors=self._vectors[:n],
                ids=np.array(self._ids, dtype=np.str_),
                answers=np.array(self._answers, dtype=np.str_),
                next=np.array(self._next),
            )
        replace_file(path, written.getbuffer())

    def load(self, path: Path) -> None:
        """Read a saved file. Raises ValueError or OSError for a damaged file (each array has a CRC-32)."""
        try:
            with np.load(path, allow_pickle=False) as data:
                vectors, ids, answers = data["vectors"], data["ids"], data["answers"]
                oldest = int(data["next"])
        except (zipfile.BadZipFile, zlib.error, KeyError, EOFError, TypeError, AttributeError, ValueError) as error:
            # NumPy's own words would be of pickles, and of how to load them unsafely
            raise ValueError(f"{path} is damaged") from error
        if vectors.ndim != 2 or not len(vectors) == len(ids) == len(answers):
            raise ValueError(f"{path} is not an experience buffer")
        order = np.roll(np.arange(len(ids)), -oldest)[-self.capacity :] if len(ids) else np.arange(0)
        for i in order:
            self.add(str(ids[i]), vectors[i], str(answers[i]))


def _unit(embedding: np.ndarray) -> np.ndarray | None:
    vector = np.asarray(embedding, np.float32).reshape(-1)
    norm = float(np.linalg.norm(vector))
    return vector / norm if np.isfinite(norm) and norm > 0 else None
