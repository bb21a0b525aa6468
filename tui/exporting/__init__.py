"""The formats of `grpo-tui export`. `formats.py` is the table of them, and each other file writes one family."""
