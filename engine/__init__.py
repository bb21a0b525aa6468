"""What makes a run go: its record on disk, its processes, its agents, training and online learning."""
