"""The parts of a run: its record on disk, its processes, its agents, training and online learning."""
