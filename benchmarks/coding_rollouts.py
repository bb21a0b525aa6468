"""Generate synthetic rollouts of coding agents and reasoning models, as JSON lines of OpenAI messages.

    python -m benchmarks.coding_rollouts FOLDER     writes kinds.jsonl (every kind of text) and agents.jsonl (300 steps)

The texts repeat, but have the shapes of real rollouts: Markdown, diffs, test logs with colours, JSON in one line,
tracebacks, parallel calls, failing calls, thoughts in a field, in tags and in channels, one text of 3 MB and one line
of 2 MB.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Message = dict[str, Any]

SYSTEM = "You are a coding agent. Fix the issue in the repository. Run the tests before you submit."
TASK = """The cache of `util.parse` is **never cleared**.

## Steps to reproduce

1. Call `parse("a=1")` twice
2. Change the file
3. Call it again

| call | expected | got |
|---|---|---|
| first | `{"a": 1}` | `{"a": 1}` |
| third | `{"a": 2}` | `{"a": 1}` |

> It worked in 2.3.

```python
from app.util import parse
assert parse("a=2") == {"a": 2}
```
"""
THOUGHT = """The issue says that the cache is **never cleared**. Let me look at `app/util.py` first.

- `parse` has an `lru_cache` around it
- `reload` should call `parse.cache_clear()`

Then I will run the tests. Wait, is the cache per process? It is, so a reload in one worker does not reach the others.
"""
SOURCE = '''"""Small helpers."""

from functools import lru_cache

LIMIT = 128


@lru_cache(maxsize=LIMIT)
def parse(text: str) -> dict[str, int]:
    """`a=1 b=2` as a dictionary."""
    pairs = (part.split("=") for part in text.split())
    return {key: int(value) for key, value in pairs}  # values are whole


class Settings:
    def __init__(self, path):
        self.path = path
        self.values = None

    def reload(self):
        self.values = parse(open(self.path).read())
        return self.values
'''
OLD = "        self.values = parse(open(self.path).read())\n        return self.values\n"
NEW = (
    "        parse.cache_clear()\n        with open(self.path) as file:\n            self.values = parse(file.read())\n"
    "        return self.values\n"
)
DIFF = """diff --git a/app/util.py b/app/util.py
index 3f1c2aa..9be01d4 100644
--- a/app/util.py
+++ b/app/util.py
@@ -18,5 +18,7 @@ class Settings:
         self.values = None
 
     def reload(self):
-        self.values = parse(open(self.path).read())
+        parse.cache_clear()
+        with open(self.path) as file:
+            self.values = parse(file.read())
         return self.values
"""
TRACEBACK = """Traceback (most recent call last):
  File "/repo/app/util.py", line 20, in reload
    self.values = parse(open(self.path).read())
  File "/repo/app/util.py", line 12, in parse
    return {key: int(value) for key, value in pairs}
ValueError: invalid literal for int() with base 10: 'x'
"""
FAILED = (
    "\x1b[1m============================= test session starts ==============================\x1b[0m\n"
    "platform linux -- Python 3.12.3, pytest-8.4.2\ncollected 3 items\n\n"
    "tests/test_util.py \x1b[32m.\x1b[0m\x1b[31mF\x1b[0m\x1b[32m.\x1b[0m\x1b[31m                    [100%]\x1b[0m\n\n"
    "=================================== FAILURES ===================================\n"
    "\x1b[31m\x1b[1m________________________________ test_reload ___________________________________\x1b[0m\n\n"
    "    def test_reload(tmp_path):\n"
    "        file.write_text('a=2')\n"
    ">       assert settings.reload() == {'a': 2}\n"
    "\x1b[1m\x1b[31mE       AssertionError: assert {'a': 1} == {'a': 2}\x1b[0m\n\n"
    "\x1b[1m\x1b[31mtests/test_util.py\x1b[0m:14: AssertionError\n"
    "\x1b[31m========================= \x1b[31m\x1b[1m1 failed\x1b[0m, \x1b[32m2 passed\x1b[0m\x1b[31m in 0.12s\x1b[0m"
    "\x1b[31m =========================\x1b[0m\n"
)
PASSED = (
    "\x1b[32m==================== \x1b[32m\x1b[1m3 passed\x1b[0m\x1b[32m in 0.10s\x1b[0m =========================\n"
)
ITEMS = {
    "items": [
        {"id": i, "name": f"item {i}", "tags": ["a", "b"], "price": i * 1.5, "sold": i % 3 == 0} for i in range(40)
    ],
    "next": None,
}
SUMMARY = """I fixed the cache.

### What changed

| file | change |
|---|---|
| `app/util.py` | `reload` clears the cache of `parse` |
| `tests/test_util.py` | a test of it |

```diff
-        self.values = parse(open(self.path).read())
+        parse.cache_clear()
```

All **3** tests pass. The number of stale entries is \\(n - 1\\), so with n = 43 the answer is $\\boxed{42}$.
"""
HARMONY = (
    "<|channel|>analysis<|message|>The tests pass now. I should check that nothing else uses the cache.<|end|>"
    "<|start|>assistant<|channel|>final<|message|>Nothing else uses it."
)


def call(name: str, id_: str, **arguments: Any) -> Message:
    """Return a tool call in OpenAI's format."""
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def turn(text: str, *calls: Message, thought: str = "") -> Message:
    """Return a message of the agent."""
    return {
        "role": "assistant",
        "content": text,
        **({"reasoning_content": thought} if thought else {}),
        **({"tool_calls": list(calls)} if calls else {}),
    }


def result(id_: str, text: str) -> Message:
    """Return the message of a tool."""
    return {"role": "tool", "tool_call_id": id_, "content": text}


def kinds() -> Iterator[Message]:
    """Yield the messages of one rollout with every kind of text."""
    yield turn("I will **read** the file first.", call("read_file", "1", path="app/util.py"), thought=THOUGHT)
    yield result("1", "".join(f"{at:6}\t{line}\n" for at, line in enumerate(SOURCE.splitlines(), 1)))
    yield turn(
        f"<think>\n{THOUGHT}\n</think>\n\nTwo things at once.",
        call("bash", "2", command="cd /repo && git log --oneline | head -3", timeout=30),
        call("bash", "3", command='for f in *.py; do\n  echo "$f"  # each\ndone\npytest -q tests/'),
    )
    yield result("2", "3f1c2aa Add Settings\n9be01d4 First commit\n")
    yield result("3", FAILED + "\n[exit code: 1]")
    yield turn("", call("str_replace_editor", "4", command="str_replace", path="app/util.py", old_str=OLD, new_str=NEW))
    yield result("4", "The file app/util.py has been edited.")
    yield turn("", call("bash", "5", command="git diff"), call("bash", "6", command="python -m app.util"))
    yield result("5", DIFF)
    yield result("6", TRACEBACK)
    yield turn(
        "<thinking>The API may know.</thinking>",
        call("http_get", "7", url="https://api.example.com/items?limit=40", headers={"Accept": "application/json"}),
    )
    yield result("7", json.dumps(ITEMS))
    yield turn(
        "", call("python", "8", code="import json\nprint(json.dumps({'a': [1, 2]}))\nfor i in range(3):\n    print(i)")
    )
    yield result("8", '{"a": [1, 2]}\n0\n1\n2\n')
    yield turn(HARMONY, call("bash", "9", command="pytest -q"))
    yield result("9", PASSED + "\n[exit code: 0]")
    yield turn("", call("bash", "10", command="sleep 1000"))
    yield result("10", "Error: the command timed out after 30 seconds")
    yield turn(SUMMARY)


def agent(steps: int, seed: int, most: int = 30_000, huge: bool = False) -> Iterator[Message]:
    """Yield the messages of a rollout with `steps` steps and results of up to `most` characters."""
    rng = random.Random(seed)
    for at in range(steps):
        id_ = str(at)
        thought = THOUGHT * rng.choice((0, 1, 1, 2, 8))
        kind = at % 6
        if huge and at == steps // 2:
            yield turn("", call("bash", id_, command="cat build.log"), thought=thought)
            yield result(id_, "".join(f"[{i:7}] compiling module_{i % 97}.c with -O2 -Wall\n" for i in range(64_000)))
        elif huge and at == steps // 2 + 1:
            yield turn("", call("bash", id_, command="cat bundle.min.js"), thought=thought)
            yield result(id_, "function(a,b){return a+b}," * 80_000)
        elif kind == 0:
            path = f"app/module_{rng.randrange(40)}.py"
            yield turn("I will **read** it.", call("read_file", id_, path=path), thought=thought)
            yield result(id_, (SOURCE * 60)[: rng.randrange(500, most)])
        elif kind == 1:
            path = "app/util.py" if at == 121 else f"app/module_{rng.randrange(40)}.py"
            yield turn("", call("edit", id_, path=path, old_str=OLD, new_str=NEW), thought=thought)
            yield result(id_, "ok")
        elif kind == 2:
            failed = at == 98 or (at > 98 and rng.random() < 0.2)
            yield turn("", call("bash", id_, command="pytest -q"), thought=thought)
            log = (FAILED if failed else PASSED) * rng.randrange(1, max(2, most // 2_000))
            yield result(id_, f"{log[:most]}\n[exit code: {int(failed)}]")
        elif kind == 3:
            yield turn(
                "Two at once.",
                call("bash", id_ + "a", command=f"grep -rn parse app/ | head -{at}"),
                call("bash", id_ + "b", command="git status --short"),
                thought=thought,
            )
            found = "".join(f"app/module_{i}.py:{i}:    values = parse(text)\n" for i in range(rng.randrange(5, 300)))
            yield result(id_ + "b", " M app/util.py\n")
            yield result(id_ + "a", found)
        elif kind == 4:
            yield turn("", call("http_get", id_, url=f"https://api.example.com/items?page={at}"), thought=thought)
            yield result(id_, json.dumps([ITEMS] * rng.randrange(1, 4)))
        else:
            yield turn(
                f"<think>{thought or THOUGHT}</think>Let me look at the diff.", call("bash", id_, command="git diff")
            )
            yield result(id_, (DIFF * 60)[: rng.randrange(300, most)])
    yield turn(SUMMARY)


def reasoning(tokens: int = 20_000) -> Message:
    """Return an answer with a thought of about `tokens` tokens."""
    line = (
        "Let $x = {at}$. Then \\(x^2 - 1 = (x - 1)(x + 1)\\), so we need **both** factors to be prime. Hmm, wait.\n\n"
    )
    thought = "".join(line.replace("{at}", str(at)) for at in range(tokens * 4 // len(line)))
    return turn(f"<think>\n{thought}\n</think>\n\nThe only prime is 3, so the answer is $$\\boxed{{x = 2}}$$")


def rows(rollouts: dict[str, list[Message]]) -> Iterator[dict[str, Any]]:
    """Yield rows of the generic JSON lines, all of one group, with different rewards."""
    for at, (name, messages) in enumerate(rollouts.items()):
        yield {
            "id": name,
            "group": "cache-1",
            "step": 1,
            "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": TASK}, *messages],
            "reward": 0.25 * (at % 4),
            "advantage": 0.5 * (at % 4) - 0.75,
        }


def write(path: Path, rollouts: dict[str, list[Message]]) -> Path:
    """Write a file of rollouts."""
    with path.open("w", encoding="utf-8") as file:
        for row in rows(rollouts):
            file.write(json.dumps(row) + "\n")
    return path


def write_kinds(folder: Path) -> Path:
    """Write a small file with every kind of text and a long thought."""
    math = [reasoning()]
    return write(folder / "kinds.jsonl", {"kinds": list(kinds()), "math": math, "short": list(kinds())[:8]})


def write_agents(folder: Path, count: int = 24) -> Path:
    """Write agents of 300 steps. The first has a text of 3 MB and a line of 2 MB."""
    return write(folder / "agents.jsonl", {f"agent-{i}": list(agent(300, i, huge=i == 0)) for i in range(count)})


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for made in (write_kinds(folder), write_agents(folder)):
        print(f"{made}: {made.stat().st_size / 1e6:.1f} MB")
