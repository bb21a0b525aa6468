"""Every number of a recorded training computed again from the record alone, and compared with what is recorded.

One file a kind of number: `rewards`, `advantages`, `replay`, `loss`, `metrics`; `ledger` is where they report. Inputs
are what the record holds. Metrics of rewards come from the function that training uses (`rewards.metrics`).

What cannot be computed again is taken as it is recorded and named in the report: prediction errors and similarities
(they come from hidden states, which are not recorded), log-probs, times, memory, gradient norms.
"""

from __future__ import annotations

from .check import recompute as recompute
from .ledger import Report as Report
from .ledger import Wrong as Wrong
