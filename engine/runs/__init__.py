"""The record of a run on disk: write it, read it, follow it. Never imports torch."""
