"""Learning while serving: inference engine, update queue, update worker, KL control and snapshots."""
