"""Files shared by engine and worker: queue, tasks, snapshots, logs."""
