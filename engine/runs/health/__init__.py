"""The health of a run: headline numbers, checkpoints, and the repair of a damaged record."""
