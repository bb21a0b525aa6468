"""Names and seeds that depend only on a task and a purpose, not on the place and the batch of sampling."""

from __future__ import annotations

import hashlib
import json
import random


def seed_of(*parts: int | str) -> int:
    """Return a seed in [0, 2**62) made of these parts, the same in every process."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 2


def split_seeds(split: str, n: int, seed: int) -> list[int]:
    """Return `n` numbers for tasks that are made of a number: even ones for `train`, odd ones for `eval`."""
    rng = random.Random(f"{split} {seed}")
    return [rng.randrange(2**30) * 2 + (split == "eval") for _ in range(n)]


def task_id(env: str, task: object) -> str:
    """Return a task's name, equal in every run: 12 hexadecimal digits of its content."""
    content = json.dumps([env, task], sort_keys=True, default=str)
    return hashlib.sha1(content.encode("utf-8", "replace")).hexdigest()[:12]
