"""The command line and the Textual app. They read the record and call the launcher, nothing else."""
