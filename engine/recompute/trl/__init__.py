"""Recompute every number of a TRL training from a record of `grpo_tui.trl.attach`.

`settings` holds the declared settings, `generation` the formulas of groups and advantages, and `loss` the loss and its
gradient for each token's log-prob. `check` walks through the record. The formulas are those of TRL 1.16 in plain
Python. They share no code with TRL.
"""
