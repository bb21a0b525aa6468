"""What is paid: to answer at once instead of looking first."""


def answers_at_once(completions, **kwargs):
    """1 for a completion that is an answer."""
    return [(float('"ANSWER"' in c[0]["content"]), c[0]["content"][:40]) for c in completions]


def brief(completion_ids, **kwargs):
    """Less than nothing for many tokens."""
    return [-len(ids) / 100 for ids in completion_ids]
