"""Files of pictures of every kind."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

COLOURS = {"red": (220, 30, 30), "blue": (30, 30, 220)}


def make_pictures(folder: Path) -> dict[str, str]:
    """Their paths, by what is the matter with them; `missing` is not there."""
    for name, colour in COLOURS.items():
        Image.new("RGB", (48, 48), colour).save(folder / f"{name}.png")
    Image.new("CMYK", (48, 32), (0, 255, 255, 0)).save(folder / "cmyk.jpg")
    frames = [Image.new("RGB", (40, 40), colour) for colour in COLOURS.values()]
    frames[0].save(folder / "animated.gif", save_all=True, append_images=frames[1:])
    Image.new("RGB", (1, 1), "red").save(folder / "pixel.png")
    Image.new("L", (7000, 7000)).save(folder / "huge.png")
    (folder / "broken.png").write_bytes((folder / "red.png").read_bytes()[:60])
    return {path.stem: str(path) for path in [*folder.iterdir(), folder / "missing.png"]}
