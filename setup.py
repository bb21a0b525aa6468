"""The folders at the root are the rooms of one package: `tui/` installs as `grpo_tui.tui`, and so on. `api/` is the
package's own top: `api/recorder.py` installs as `grpo_tui.recorder`.

Folders of data (`configs/presets`) are found like packages, so that their files are included.
"""

from setuptools import find_namespace_packages, setup

ROOMS = ("configs", "envs", "rewards", "engine", "tui")
DATA = ("yaml", "json", "jsonl", "safetensors", "tcss", "sql", "png", "jpg", "ttf", "txt", "jinja", "html", "js", "md")

setup(
    packages=["grpo_tui"]
    + [
        f"grpo_tui.{name}"
        for name in find_namespace_packages(
            include=[pattern for room in ROOMS for pattern in (room, f"{room}.*")], exclude=["*.__pycache__"]
        )
    ],
    package_dir={"grpo_tui": "api", **{f"grpo_tui.{room}": room for room in ROOMS}},
    package_data={"": [f"*.{suffix}" for suffix in DATA]},
    include_package_data=False,
)
