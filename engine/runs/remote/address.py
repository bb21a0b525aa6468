"""Addresses such as `s3://…`, `hf://…`, `ssh://host/folder`: file systems, and errors in one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ....configs.location import user_folder
from ..errors import RecordError
from ..masking import mask_text
from ..paths import DATABASE

_PACKAGES = {
    "hf": "huggingface_hub",
    "s3": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "https": "aiohttp",
    "http": "aiohttp",
    "ssh": "sshfs",
    "sftp": "sshfs",
}
_CONNECT_SECONDS = 15
_GONE = "there is no such file or folder, or it has been removed"
MARK = b"grpo-tui reads this record from "
"""The beginning of a `record.sqlite` file that only holds the address of a record on another machine."""


class AddressError(RecordError, OSError):
    """An address cannot be read. The message names the address without its password, and the fix."""


def is_address(reference: object) -> bool:
    """Return whether a reference names files on another machine."""
    return isinstance(reference, str) and "://" in reference


def cache_folder() -> Path:
    """Return the parent folder of the local mirrors of remote runs."""
    return user_folder("XDG_CACHE_HOME", ".cache") / "remote"


def address_of(run_dir: Path) -> str | None:
    """Return the address of the remote run that a folder mirrors; None for a run on this machine.

    Only folders created by `mirror.py` count, so that a run from elsewhere cannot make us connect to an address.
    """
    if cache_folder().resolve() not in run_dir.resolve().parents:
        return None
    try:
        with (run_dir / DATABASE).open("rb") as file:
            return file.read().decode().strip() if file.read(len(MARK)) == MARK else None
    except OSError:
        return None


@contextmanager
def readable_errors(address: str) -> Iterator[None]:
    """Turn errors of fsspec's file systems into AddressError."""
    try:
        yield
    except AddressError:
        raise
    except ImportError as error:
        needed = "apsw" if error.name == "apsw" else f"fsspec {_PACKAGES.get(address.partition('://')[0], '')}".strip()
        what = f"reading it needs more packages ({error}): pip install {needed}"
        raise AddressError(f"{mask_text(address)}: {what}") from None
    except Exception as error:  # each file system raises its client's errors
        raise AddressError(f"{mask_text(address)} cannot be read: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    import socket

    chain = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None and cause not in chain:
        chain.append(cause)
    text = mask_text(str(error) or type(error).__name__)[:160]
    names = {type(e).__name__ for e in chain}
    statuses = {getattr(e, "status", None) or getattr(getattr(e, "response", None), "status_code", None) for e in chain}
    if any(isinstance(e, socket.gaierror) for e in chain) or "ClientConnectorDNSError" in names:
        return f"the host is unknown ({text})"
    if "HostKeyNotVerifiable" in names:
        return f"the host is not in ~/.ssh/known_hosts, or its key has changed ({text}); connect once with ssh"
    if names & {"PermissionError", "PermissionDenied", "NoCredentialsError"} or statuses & {401, 403}:
        return f"access is denied ({text}); check the key or token for it on this machine"
    if 404 in statuses or any(isinstance(e, FileNotFoundError) for e in chain):
        return _GONE
    return f"{type(error).__name__}: {text}"


def connected(address: str) -> tuple[Any, str]:
    """Return the fsspec file system of an address and the path in it. Raises AddressError."""
    with readable_errors(address):
        import fsspec.core

        options: dict[str, object] = {}
        if address.partition("://")[0] in ("ssh", "sftp"):
            # fsspec's own client and the default of sshfs accept any host key. This client reads known_hosts.
            from sshfs import SSHFileSystem  # pyright: ignore[reportMissingImports]

            for scheme in ("ssh", "sftp"):
                fsspec.register_implementation(scheme, SSHFileSystem, clobber=True)
            options = {"known_hosts": (), "connect_timeout": _CONNECT_SECONDS, "login_timeout": _CONNECT_SECONDS}
        files, path = fsspec.core.url_to_fs(address.rstrip("/"), **options)
        return files, str(path)


def is_file(files: Any, path: str) -> bool:
    """Return whether a file exists. fsspec's `isfile` is also False for unknown hosts, and begins to fetch the file."""
    try:
        return files.info(path).get("type") == "file"
    except FileNotFoundError as error:
        if _reason(error) != _GONE:
            raise
        return False
