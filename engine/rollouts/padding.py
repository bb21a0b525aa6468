"""Rows of different length as one tensor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def pad_rows(rows: Sequence[np.ndarray | None], length: int, value: float, dtype: torch.dtype) -> Tensor:
    """B rows [T_i] as one tensor [B, length], right-padded with `value`; None is a row of `value`."""
    out = torch.full((len(rows), length), value, dtype=dtype)
    for i, row in enumerate(rows):
        if row is not None and len(row):
            out[i, : len(row)] = torch.from_numpy(np.ascontiguousarray(row)).to(dtype)
    return out
