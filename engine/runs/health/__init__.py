"""Whether a run is well: its headline numbers, its checkpoints, and the repair of a damaged record."""
