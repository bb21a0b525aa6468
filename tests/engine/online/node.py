"""The npm package `openai`, for the tests of OpenAI's client for Node."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

NODE_CLIENT = "openai@6"


def node_folder(cache: Any) -> Path:
    """A folder of pytest's cache with the package, fetched once. Skips the test where it cannot be had."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("Node.js is not installed")
    folder: Path = cache.mkdir("node")
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "node_modules" / "openai" / "package.json").is_file():
            options = ["--no-audit", "--no-fund", "--silent", "--fetch-retries=0", "--fetch-timeout=20000"]
            try:
                subprocess.run(["npm", "install", *options, NODE_CLIENT], cwd=folder, check=True, timeout=90)
            except (OSError, subprocess.SubprocessError) as problem:
                pytest.skip(f"the npm package {NODE_CLIENT} cannot be had: {problem}")
    return folder
