"""Reward an answer in the first turn, and brevity."""


def answers_at_once(completions, **kwargs):
    """Return 1 for a completion that is an answer."""
    return [(float('"ANSWER"' in c[0]["content"]), c[0]["content"][:40]) for c in completions]


def brief(completion_ids, **kwargs):
    """Return a cost that grows with the number of tokens."""
    return [-len(ids) / 100 for ids in completion_ids]
