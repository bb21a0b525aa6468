"""Ids and seeds that depend only on a task and a purpose, not on where or in which batch it is sampled."""

from __future__ import annotations

import hashlib
import json
import random
from typing import Literal


def seed_of(*parts: int | str) -> int:
    """Hash these parts to a seed in [0, 2**62), the same in every process."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 2


def split_seeds(split: str, n: int, seed: int) -> list[int]:
    """Return `n` seeds for generated tasks: even ones for `train`, odd ones for `eval`."""
    rng = random.Random(f"{split} {seed}")
    return [rng.randrange(2**30) * 2 + (split == "eval") for _ in range(n)]


def split_of(content: str, held_out: int = 64) -> Literal["train", "eval"]:
    """Return the split of generated content by its hash: `eval` for `held_out` of 256 contents."""
    return "eval" if hashlib.sha1(content.encode()).digest()[0] < held_out else "train"


def task_id(env: str, task: object) -> str:
    """Return a task's id, stable across runs: 12 hexadecimal digits of the hash of its content."""
    content = json.dumps([env, task], sort_keys=True, default=str)
    return hashlib.sha1(content.encode("utf-8", "replace")).hexdigest()[:12]
