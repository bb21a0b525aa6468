"""Reports of training and learning: the step recorder and wandb."""
