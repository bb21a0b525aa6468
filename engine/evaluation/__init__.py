"""Evaluations of policies: their statistics, comparison, and the record they are read from. Never imports torch."""
