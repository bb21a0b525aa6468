"""Files that engine and worker share: queue, tasks, snapshots, logs."""
