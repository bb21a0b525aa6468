"""Compute every number of a training with TRL again, from a record of `grpo_tui.trl.attach`.

`settings` holds the declared settings, `generation` the formulas of groups and advantages, `loss` the loss with its
gradient for the log-prob of each token, and `check` walks through the record. The formulas are those of TRL 1.16, and
are written here in plain Python: they share no code with TRL.
"""

from __future__ import annotations

from .check import is_trl as is_trl
from .check import recompute_trl as recompute_trl
