"""What training and learning report: the step recorder and wandb."""
