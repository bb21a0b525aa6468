"""Compute every number of a recorded training again, from the record only, and compare it with the recorded one.

One file a kind of number: `rewards`, `advantages`, `replay`, `loss`, `metrics`. They report to `ledger`. Advantages and
the metrics of rewards use the functions of training (`rewards.advantages`, `rewards.metrics`).

Numbers that the record does not determine are taken as recorded and named in the report: prediction errors and
similarities (they come from hidden states, which are not recorded), log-probs, times, memory, gradient norms.
"""

from __future__ import annotations

from .check import recompute as recompute
from .ledger import Report as Report
from .ledger import Wrong as Wrong
