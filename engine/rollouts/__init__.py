"""Rollouts and their value: samples, the runner, scoring, advantages, replay, evaluation."""
