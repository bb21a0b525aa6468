"""Reward an answer that repeats the result of the tool, and a little the use of the tool."""


def repeats_result(completions, **kwargs):
    """Return 1 if the last message repeats the result of the tool."""
    scores = []
    for completion in completions:
        read = [m["content"].removeprefix("text ") for m in completion if m["role"] == "tool"]
        answer = completion[-1]["content"]
        scores.append((float(bool(read) and read[-1] in answer), f"read {read}, answered {answer[-40:]}"))
    return scores


def reads_first(completions, **kwargs):
    """Return 1 if the completion uses the tool. Few do at first, and only those can repeat its result."""
    return [float(any(m["role"] == "tool" for m in completion)) for completion in completions]
