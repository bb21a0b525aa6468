"""Reports of training and learning: the step recorder, wandb and other trackers."""
