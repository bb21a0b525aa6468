"""What engine and worker share on disk: queue, tasks, snapshots, logs."""
