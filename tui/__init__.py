"""The terminal: the command line and the Textual app. Reads the record and asks the launcher, nothing else."""
