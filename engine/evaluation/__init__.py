"""Evaluations of policies: reading them from records, statistics and comparison. Never imports torch."""
