"""Arithmetic faults in TRL's GRPOTrainer, and the share of them that `check --recompute` finds in the record."""
