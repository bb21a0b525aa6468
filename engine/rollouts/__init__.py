"""Makes and scores rollouts: data, runner, scoring, advantages, replay, evaluation."""
