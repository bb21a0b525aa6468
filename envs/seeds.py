"""Seeds that depend on what they are for alone, so that rollouts come out the same wherever and beside whatever they
are sampled."""

from __future__ import annotations

import hashlib
import random


def seed_of(*parts: int | str) -> int:
    """A seed in [0, 2**62) made of these parts; the same in every process."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 2


def split_seeds(split: str, n: int, seed: int) -> list[int]:
    """`n` numbers for tasks that are made of a number; those of `train` are even, those of `eval` odd."""
    rng = random.Random(f"{split} {seed}")
    return [rng.randrange(2**30) * 2 + (split == "eval") for _ in range(n)]
