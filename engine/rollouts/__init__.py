"""What was sampled and what it is worth: samples, the runner, scoring, advantages, replay, evaluation."""
