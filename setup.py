"""The folders at the root are the rooms of one package: `tui/` installs as `grpo_tui.tui`, and so on."""

from setuptools import find_packages, setup

ROOMS = ("configs", "envs", "rewards", "engine", "tui")

setup(
    packages=[
        f"grpo_tui.{name}" for name in find_packages(include=[p for r in ROOMS for p in (r, f"{r}.*")])
    ],
    package_dir={f"grpo_tui.{room}": room for room in ROOMS},
    package_data={
        "": [
            "*.yaml",
            "*.json",
            "*.jsonl",
            "*.safetensors",
            "*.tcss",
            "*.sql",
            "*.png",
            "*.jpg",
            "*.ttf",
            "*.txt",
            "*.jinja",
            "*.html",
        ],
    },
    include_package_data=False,
)
