"""The configuration of a run as stored in its folder, without secrets.

Users read, copy and share `config.yaml`, so it masks the values of keys that name a secret. The processes get the real
values in their environment, and `read_config` restores them.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..runs.masking import MASKED, mask
from ..runs.paths import CONFIG_FILE, PROCESSES, RUN_FILE, pinned
from . import LaunchError

if TYPE_CHECKING:
    from ...configs.schema import RunConfig
    from ..runs.write.writer import NullWriter, RunWriter

SECRETS_VARIABLE = "GRPO_TUI_SECRETS"
BEFORE = "before"
"""Folder in `processes` with the settings before a resume, until a step has run with the new ones."""
Path_ = tuple[str | int, ...]


def read_config(run_dir: Path | str) -> RunConfig:
    """Return the configuration of the run in a folder, with secrets if this process was given them.

    Raises `configs.ConfigError` for an invalid file.
    """
    from ...configs.loading import load_config
    from ...configs.schema import RunConfig

    config = load_config(Path(run_dir) / CONFIG_FILE)
    secrets = json.loads(os.environ.get(SECRETS_VARIABLE) or "[]")
    if not secrets:
        return config
    data = config.model_dump(mode="json")
    for path, value in secrets:
        section: Any = data
        for part in path[:-1]:
            section = section[part]
        section[path[-1]] = value
    return RunConfig.model_validate(data)


def rendered(config: RunConfig) -> tuple[bytes, dict[str, str]]:
    """Return `config.yaml` without secrets, and the environment variables that pass the secrets to the processes.

    Raises LaunchError if a secret is already masked, as in a resumed run: the user has to give it again.
    """
    from ...configs.schema import RunConfig
    from ...configs.writing import to_yaml

    data = config.model_dump(mode="json")
    for path, value in _leaves(data):
        if isinstance(value, str) and MASKED in value:
            key = ".".join(map(str, path))
            raise LaunchError(f"{key} is a secret and not stored with the run: pass it again with --set {key}=…")
    masked = mask(data)
    secrets = [found for found, shown in zip(_leaves(data), _leaves(masked), strict=True) if shown != found]
    shown = RunConfig.model_validate(masked) if secrets else config
    return to_yaml(shown).encode(), {SECRETS_VARIABLE: json.dumps(secrets)} if secrets else {}


def config_checksum(data: bytes) -> str:
    """Return the checksum of `config.yaml` for run.json. Nothing else detects a flipped digit in a learning rate."""
    return hashlib.sha256(data).hexdigest()


def config_damage(run_dir: Path, known: Collection[object]) -> str | None:
    """Return one sentence if `config.yaml` matches none of the launcher's checksums, else None.

    A run without checksums is not checked.
    """
    path = run_dir / CONFIG_FILE
    if not known:
        return None
    try:
        if config_checksum(path.read_bytes()) in known:
            return None
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    return (
        f"{path} differs from the file that the run was last started with: it is damaged, or was edited by hand. "
        "Restore it and change values with --set KEY=VALUE. To keep the edit, delete config_checksums from run.json"
    )


def keep_settings(run_dir: Path) -> None:
    """Copy the settings of a run before a resume changes them. Raises OSError."""
    before = run_dir / PROCESSES / BEFORE
    before.mkdir(parents=True, exist_ok=True)
    for name in (CONFIG_FILE, RUN_FILE):
        if (run_dir / name).exists():
            shutil.copy2(run_dir / name, before / name)


def restore_settings(run_dir: Path) -> bool:
    """Undo the changes of a resume. Returns whether `config.yaml` had any. Raises OSError."""
    before = run_dir / PROCESSES / BEFORE
    kept = before / CONFIG_FILE
    changed = kept.exists() and kept.read_bytes() != (run_dir / CONFIG_FILE).read_bytes()
    for name in (CONFIG_FILE, RUN_FILE) if changed else ():  # in this order: the newer run.json accepts both
        os.replace(before / name, run_dir / name)
    return changed


@contextmanager
def unless_refused(run_dir: Path, writer: RunWriter | NullWriter, step: int | None) -> Iterator[None]:
    """Undo the changes of a resume if the block fails before it has recorded a step after `step` (None: any)."""
    from ..runs.read.reader import RunReader

    try:
        yield
    except Exception:
        writer.flush(timeout=10.0)
        with RunReader(run_dir) as record:
            nothing_ran = step is None or record.metrics.last_step() <= step
        if nothing_ran and restore_settings(run_dir):
            writer.event("note", "no step ran with the changed settings: config.yaml has the earlier ones again")
        raise
    finally:
        shutil.rmtree(run_dir / PROCESSES / BEFORE, ignore_errors=True)


def _leaves(data: object, path: Path_ = ()) -> Iterator[tuple[Path_, object]]:
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield from _leaves(value, (*path, key))
    elif isinstance(data, list):
        for i, value in enumerate(data):
            yield from _leaves(value, (*path, i))
    else:
        yield path, data


def configuration_id(config: RunConfig) -> str:
    """Return a checksum of everything except seed and name. Runs with equal checksums differ only in their seeds."""
    from ...configs.writing import to_yaml

    adapters = config.model.sft_adapters
    model = config.model.model_copy(update={"sft_adapters": adapters and pinned(adapters)})
    normalized = config.model_copy(update={"seed": 0, "name": "", "model": model})
    return hashlib.sha256(to_yaml(normalized).encode()).hexdigest()[:12]
