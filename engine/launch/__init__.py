"""Start, find, pause and stop the processes of a run. Never imports torch."""
