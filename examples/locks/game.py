"""A game of several turns: three locks that a secret word opens."""

import random

from grpo_tui.envs import MultiTurnEnv, StepResult

WORD = "ANSWER"


class Locks(MultiTurnEnv):
    """Each turn with the word opens a lock and earns a third. Any other turn ends the game."""

    name = "locks"

    def __init__(self, tokenizer=None, *, locks: int = 3, **config):
        super().__init__(tokenizer, max_turns=locks, **config)
        self.locks = locks

    def make_tasks(self, split, n, seed):
        """Return doors by number: even ones for training, odd ones for evaluation."""
        rng = random.Random(f"{split} {seed}")
        return [{"door": 2 * rng.randrange(1000) + (split == "eval")} for _ in range(n)]

    def reset(self, task):
        """Begin with no open lock."""
        return {"open": 0}, [{"role": "user", "content": f"what is {task['door'] % 50} + {task['door'] // 50}?"}]

    def step(self, state, call):
        """Play one turn."""
        if WORD not in call.text:
            return StepResult("the door stays shut", done=True, answer="shut", correct=False)
        state["open"] += 1
        done = state["open"] == self.locks
        observation = "the door opens" if done else f"lock {state['open']} is open"
        return StepResult(observation, 1 / self.locks, done, "open" if done else None, True if done else None)

    def explain(self):
        """Explain nothing: the policy has to find the word."""
        return ""
