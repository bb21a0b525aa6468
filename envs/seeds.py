"""Seeds that depend on what they are for alone, so that rollouts come out the same wherever and beside whatever they
are sampled."""

from __future__ import annotations

import hashlib


def seed_of(*parts: int | str) -> int:
    """A seed in [0, 2**62) made of these parts; the same in every process."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 2
