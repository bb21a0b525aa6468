"""Write questions.jsonl: sums in words, with their answers."""

import json
import random
from pathlib import Path

rng = random.Random(0)
with (Path(__file__).parent / "questions.jsonl").open("w") as file:
    for _ in range(200):
        a, b = rng.randrange(50), rng.randrange(50)
        file.write(json.dumps({"question": f"what is {a} + {b}?", "answer": str(a + b)}) + "\n")
