"""The configuration of a run as stored in its folder: without its secrets, which only its processes get.

`config.yaml` is made to be read, copied and shared, so values of keys that name a secret are masked in it. The
process gets the real ones in its environment; `read_config` puts them back.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..runs.durable import replace_file
from ..runs.masking import MASKED, mask
from ..runs.paths import CONFIG_FILE
from .errors import LaunchError

if TYPE_CHECKING:
    from ...configs.schema import RunConfig

SECRETS_VARIABLE = "GRPO_TUI_SECRETS"
Path_ = tuple[str | int, ...]


def read_config(run_dir: Path | str) -> RunConfig:
    """The configuration of the run in a folder, with its secrets where this process was given them.

    Raises `configs.ConfigError` when the file is wrong.
    """
    from ...configs.loading import load_config
    from ...configs.schema import RunConfig

    config = load_config(Path(run_dir) / CONFIG_FILE)
    secrets = json.loads(os.environ.get(SECRETS_VARIABLE) or "[]")
    if not secrets:
        return config
    data = config.model_dump(mode="json")
    for path, value in secrets:
        _put(data, path, value)
    return RunConfig.model_validate(data)


def write_config(config: RunConfig, run_dir: Path) -> dict[str, str]:
    """Write `config.yaml` without secrets; returns the environment variables that carry them to the processes.

    Raises LaunchError when a secret is masked already (a resumed run): it has to be given again.
    """
    from ...configs.schema import RunConfig
    from ...configs.writing import to_yaml

    data = config.model_dump(mode="json")
    for path, value in _leaves(data):
        if value == MASKED:
            key = ".".join(map(str, path))
            raise LaunchError(f"{key} is a secret and not kept with the run: give it again with --set {key}=…")
    masked = mask(data)
    secrets = [(path, value) for path, value in _leaves(data) if _get(masked, path) != value]
    shown = RunConfig.model_validate(masked) if secrets else config
    replace_file(run_dir / CONFIG_FILE, to_yaml(shown).encode())
    return {SECRETS_VARIABLE: json.dumps(secrets)} if secrets else {}


def _leaves(data: Any, path: Path_ = ()) -> Iterator[tuple[Path_, Any]]:
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield from _leaves(value, (*path, key))
    elif isinstance(data, list):
        for i, value in enumerate(data):
            yield from _leaves(value, (*path, i))
    else:
        yield path, data


def _get(data: Any, path: Path_) -> Any:
    for part in path:
        data = data[part]
    return data


def _put(data: Any, path: Path_, value: Any) -> None:
    _get(data, path[:-1])[path[-1]] = value
