"""Draw pictures/ and write its questions.jsonl. Replace both with your own."""

import json
import random
from pathlib import Path

from PIL import Image, ImageDraw

COLOURS = {"red": "#d62728", "blue": "#1f77b4", "green": "#2ca02c", "yellow": "#e8c500"}
SIDE = 112

rng = random.Random(0)
folder = Path(__file__).parent / "pictures"
folder.mkdir(exist_ok=True)
with (folder / "questions.jsonl").open("w") as file:
    for number in range(48):
        picture = Image.new("RGB", (SIDE, SIDE), "#dddddd")
        draw = ImageDraw.Draw(picture)
        places = [(rng.randrange(22, 36), rng.randrange(24, 88)), (rng.randrange(76, 90), rng.randrange(24, 88))]
        for colour, (x, y) in zip(rng.sample(sorted(COLOURS), 2), places, strict=True):
            radius = rng.randrange(9, 15)
            draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=COLOURS[colour])
            target = colour, (x, y)
        name = f"{number:02}.png"
        picture.quantize(16).save(folder / name, optimize=True)
        colour, (x, y) = target
        question = f"colour at {x} {y}?"  # as short as the built-in policy can read, yours may be sentences
        split = "eval" if number % 3 == 0 else "train"
        file.write(json.dumps({"image": name, "question": question, "answer": colour, "split": split}) + "\n")
