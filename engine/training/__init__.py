"""SFT, reinforcement fine-tuning on TRL, advantages, selective sample replay and checkpoints."""
