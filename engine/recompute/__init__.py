"""Recompute every number of a training run from its record, and compare it with the recorded number.

There is one module per kind of number: `rewards`, `advantages`, `loss`, `metrics`, and `check` for replay. They report
to `ledger`.
Advantages and reward metrics use the functions of training (`rewards.advantages`, `rewards.metrics`).

Numbers that the record does not determine are taken as recorded and named in the report: prediction errors and
similarities (they come from hidden states, which are not recorded), log-probs, times, memory, gradient norms.
"""
