"""The formats of `grpo-tui export`. `formats.py` is their table, and each other file writes one family."""
