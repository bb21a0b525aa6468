"""The folder of runs and the file names of a run."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

DATABASE = "record.sqlite"
RUN_FILE = "run.json"
CONFIG_FILE = "config.yaml"
PROCESSES = "processes"
CONTROL = "control"
LOGS = "logs"
IMAGES = "images"
CHECKPOINTS = "checkpoints"
_NETWORK = re.compile("nfs4?|cifs|smb3|smbfs|sshfs|9p|ceph|lustre|gpfs|beegfs|afs|glusterfs|webdav")
"""Types of network file systems, as the system names them."""


def runs_dir(cli_value: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder of runs: `--runs-dir`, else `$GRPO_TUI_HOME/runs`, else `./runs`. It need not exist."""
    if cli_value:
        return Path(cli_value).expanduser().absolute()
    home = os.environ.get("GRPO_TUI_HOME")
    if home:
        return Path(home).expanduser().absolute() / "runs"
    return Path.cwd() / "runs"


def network_file_system(path: Path) -> str:
    """Return the type of the network file system that holds `path`, such as `nfs4`; empty for a local disk.

    SQLite's write-ahead log needs shared memory, which processes on different machines do not have.
    """
    import psutil

    absolute = path.absolute()
    mounts = [p for p in psutil.disk_partitions(all=True) if absolute.is_relative_to(p.mountpoint)]
    found = max(mounts, key=lambda p: len(p.mountpoint), default=None)
    if found is None:
        return ""
    remote = _NETWORK.fullmatch(found.fstype.removeprefix("fuse.")) or "remote" in found.opts.split(",")
    return found.fstype if remote else ""


def new_run_id(folder: Path | None = None) -> str:
    """Return a short id that sorts by time and is not taken in `folder`: `1120-0949-k3f9` (month day, hour minute,
    random).

    A unique ending such as `k3f9` is enough to refer to the run.
    """
    alphabet = "abcdefghijkmnpqrstuvwxyz23456789"  # no look-alikes, because people type these ids
    while True:
        tail = "".join(alphabet[byte % len(alphabet)] for byte in os.urandom(4))
        run_id = f"{time.strftime('%m%d-%H%M')}-{tail}"
        if folder is None or not (folder / run_id).exists():
            return run_id


def adapters_dir(output_dir: str, run_id: str) -> Path:
    """Return the folder of a run's own adapters. `output_dir` itself links to those of the latest finished run."""
    link = Path(output_dir).expanduser()
    return link.with_name(f"{link.name}-{run_id}")


def pinned(path: str) -> str:
    """Resolve a link to the latest adapters into the run's own folder. Return any other path unchanged."""
    link = Path(path).expanduser()
    return str(link.with_name(os.readlink(link))) if links_to_latest(link) else path


def links_to_latest(path: Path) -> bool:
    """Return whether `path` is a link made by a finished run, not a folder or link of the user."""
    return path.is_symlink() and re.fullmatch(rf"{re.escape(path.name)}-[^/\\]+", os.readlink(path)) is not None


class OnlineFolder:
    """The paths for learning while serving in a run's folder. Creates no files or folders."""

    def __init__(self, run_dir: Path) -> None:
        root = run_dir / "online"
        self.run_dir = run_dir
        self.queue = root / "queue.sqlite"
        self.state = root / "state"
        """The worker's committed states."""
        self.snapshots = run_dir / "snapshots"
        """Published versions, and the pointer to the newest one."""
        self.buffer = root / "experiences.npz"
        """The engine's saved experience buffer."""
        self.images = root / "images"
        """Images that were shown to the policy, named by content (`engine.online.store.images`)."""
        self.address = root / "address.json"
        """The engine's HTTP address, readable only by its owner: `{"url": …, "certificate": …}`."""
