"""What is paid: an answer that says what the tool said, and a little for asking it."""


def says_what_was_read(completions, **kwargs):
    """1 where the last message repeats what the tool answered before it."""
    scores = []
    for completion in completions:
        read = [m["content"].removeprefix("text ") for m in completion if m["role"] == "tool"]
        said = completion[-1]["content"]
        scores.append((float(bool(read) and read[-1] in said), f"read {read}, said {said[-40:]}"))
    return scores


def reads_first(completions, **kwargs):
    """1 for a completion that uses the tool at all: few do at first, and only those can repeat what was read."""
    return [float(any(m["role"] == "tool" for m in completion)) for completion in completions]
