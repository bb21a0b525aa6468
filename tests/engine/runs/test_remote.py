"""Runs at addresses: a real HTTP server, a real SSH server, a real S3 server, and fsspec's memory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from grpo_tui.engine.launch.find import find_run
from grpo_tui.engine.runs.control.requests import request
from grpo_tui.engine.runs.errors import RecordDamaged, RunNotFound
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.remote import mirror
from grpo_tui.engine.runs.remote.address import AddressError
from grpo_tui.engine.runs.remote.mirror import mirrored
from grpo_tui.engine.runs.remote.pages import remote_file
from grpo_tui.engine.runs.search.query import Query
from grpo_tui.engine.runs.types import TrajectoryRecord
from grpo_tui.engine.runs.write import sink
from grpo_tui.engine.runs.write.writer import RunWriter
from tests.forked import ForkedProcess

from .conftest import make
from .hub_server import hub_of
from .range_server import RangeServer, serving

pytest.importorskip("fsspec", reason="remote runs need fsspec: pip install fsspec")
pytest.importorskip("apsw", reason="remote runs need apsw: pip install apsw")

Recorded = tuple[Path, list[tuple[int, TrajectoryRecord]]]


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@pytest.fixture
def server(recorded: Recorded) -> Iterator[RangeServer]:
    pytest.importorskip("aiohttp", reason="http addresses need aiohttp: pip install aiohttp")
    with serving(recorded[0].parent) as running:
        yield running


def opened(address: str) -> RunReader:
    return RunReader(find_run(Path(), address).path)


def same(remote: RunReader, local: RunReader) -> None:
    assert remote.rollouts.page(limit=700) == local.rollouts.page(limit=700)
    for n in (1, 17, 600):
        assert remote.bodies.trajectory(n) == local.bodies.trajectory(n)
    for query in (Query(search="circle"), Query(filter="reward>0.5 and penalties>0", sort="reward")):
        assert remote.rollouts.page(query) == local.rollouts.page(query)
    assert remote.metrics.points("success/train") == local.metrics.points("success/train")
    assert remote.problems == []


def test_a_remote_run_reads_like_a_local_one(server: RangeServer, reader: RunReader):
    with opened(f"{server.address}/run") as remote:
        same(remote, reader)


def test_only_what_is_shown_is_fetched(tmp_path: Path):
    pytest.importorskip("aiohttp", reason="http addresses need aiohttp: pip install aiohttp")
    writer = RunWriter(tmp_path / "long")
    for step in range(1, 37):
        writer.trajectories(step, [make(step, i) for i in range(128)])
    assert writer.flush(60)
    writer.close()
    size = (tmp_path / "long" / "record.sqlite").stat().st_size
    with serving(tmp_path) as server, opened(f"{server.address}/long") as remote:
        assert remote.rollouts.total() == 36 * 128
        assert len(remote.rollouts.page(Query(sort="n", descending=True), limit=40)) == 40
        assert remote.bodies.trajectory(4000).trajectory.id == "t32-31"
        first = server.sent
        remote.bodies.trajectory(4000)
        assert server.sent == first, "a block is fetched once"
    assert 0 < first < size / 8, f"{first:,} of {size:,} bytes"


def test_a_folder_from_elsewhere_connects_to_nothing(server: RangeServer, tmp_path: Path):
    made = mirrored(f"{server.address}/run")
    assert made is not None
    stranger = tmp_path / "runs" / "stranger"
    shutil.copytree(made, stranger)
    before = server.sent
    with RunReader(stranger) as reader:
        assert reader.rollouts.total() == 0
        assert "cannot be opened" in reader.problems[0]
    assert server.sent == before


def test_a_run_that_grows_shows_its_new_rows(tmp_path: Path):
    pytest.importorskip("aiohttp", reason="http addresses need aiohttp: pip install aiohttp")
    writer = RunWriter(tmp_path / "run")
    writer.trajectories(1, [make(1, i) for i in range(8)])
    assert writer.flush(30)
    writer.close()
    with serving(tmp_path) as server, opened(f"{server.address}/run") as remote:
        assert [row.id for row in remote.rollouts.page()] == [f"t1-{i}" for i in range(8)]
        writer = RunWriter(tmp_path / "run")
        for step in range(2, 20):
            writer.trajectories(step, [make(step, i) for i in range(64)])
        assert writer.flush(30)
        writer.close()
        remote_file(f"{server.address}/run/record.sqlite").renew()
        assert remote.rollouts.total() == 8 + 18 * 64
        assert remote.bodies.trajectory(1000).trajectory.id.startswith("t17-")
        assert remote.problems == []


def test_an_active_run_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("aiohttp", reason="http addresses need aiohttp: pip install aiohttp")
    monkeypatch.setattr(mirror, "_EVERY", 1.2)  # over a second, in which times of files count
    monkeypatch.setattr(sink, "FOLD_SECONDS", 0.2)
    writer = RunWriter(tmp_path / "run")
    writer.status("running", step=1, total_steps=9)
    writer.trajectories(1, [make(1, i) for i in range(8)])
    assert writer.flush(30)
    try:
        with serving(tmp_path) as server, opened(f"{server.address}/run") as remote:
            seen = wait_for(lambda: remote.rollouts.total() == 8)
            assert seen and remote.info().status == "running"
            writer.trajectories(2, [make(2, i) for i in range(8)])
            writer.status("running", step=2, total_steps=9)
            assert wait_for(lambda: remote.rollouts.total() == 16 and remote.info().step == 2)
            writer.status("finished", step=2, total_steps=9, exit_code=0)
            assert wait_for(lambda: remote.info().status == "finished")
            assert remote.problems == []
    finally:
        writer.close()


def test_rows_that_are_not_folded_in_yet_are_missing_only_once_the_run_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("aiohttp", reason="http addresses need aiohttp: pip install aiohttp")
    writer = RunWriter(tmp_path / "run")
    writer.trajectories(1, [make(1, i) for i in range(8)])
    assert writer.flush(30)
    writer.close()
    writer = RunWriter(tmp_path / "run")
    writer.trajectories(2, [make(2, i) for i in range(8)])
    writer.status("running", step=2)
    assert writer.flush(30)
    shutil.copytree(tmp_path / "run", tmp_path / "killed")
    state = tmp_path / "killed" / "processes" / "training.json"
    state.write_text(json.dumps({**json.loads(state.read_text()), "status": "crashed"}))
    try:
        with serving(tmp_path) as server:
            with opened(f"{server.address}/run") as remote:
                assert remote.rollouts.total() == 8 and remote.problems == []
            with opened(f"{server.address}/killed") as remote:
                (problem,) = remote.problems
                assert problem == f"8 of 16 trajectories that were recorded are missing from {server.address}/killed"
    finally:
        writer.close()


def wait_for(true: Callable[[], bool]) -> bool:
    """Wait for rows that the writer folds into the database while nothing else is written."""
    until = time.monotonic() + 40
    while not true() and time.monotonic() < until:
        time.sleep(0.1)
    return true()


def test_a_mirror_that_was_not_opened_for_long_is_deleted(server: RangeServer):
    folder = mirrored(f"{server.address}/run")
    assert folder is not None
    old = folder.parent.with_name("old")
    old.mkdir()
    os.utime(old, (0, 0))
    mirrored(f"{server.address}/run/")
    assert folder.exists() and not old.exists()


def test_notes_stay_here_and_requests_are_refused(server: RangeServer, tmp_path: Path):
    folder = mirrored(f"{server.address}/run")
    assert folder is not None
    with RunReader(folder) as remote:
        remote.notes.put("t1-0", "#odd looks copied")
        assert remote.notes.path.is_relative_to(tmp_path / "data")
        assert [row.id for row in remote.rollouts.page(Query(filter="label:odd"))] == ["t1-0"]
    with pytest.raises(OSError, match="read-only"):
        request(folder, "stop")


def test_an_image_is_fetched_when_it_is_shown(tmp_path: Path, recorded: Recorded):
    from shutil import copytree

    from PIL import Image

    from grpo_tui.tui.app.widgets.image_view import natural_size, resolve

    copytree(recorded[0], tmp_path / "served" / "run")
    (tmp_path / "served" / "run" / "images").mkdir()
    Image.new("RGB", (8, 4)).save(tmp_path / "served" / "run" / "images" / "a.png")
    with serving(tmp_path / "served") as server:
        folder = mirrored(f"{server.address}/run")
        assert folder is not None and not (folder / "images").exists()
        local = resolve(folder, "images/a.png")  # on the screen's thread: it waits for no server
        assert local is not None and not local.exists()
        assert natural_size(folder, "images/a.png") == (8, 4) and local.exists()
        missing = resolve(folder, "images/b.png")
        assert missing is not None and not missing.exists()
        assert resolve(folder, "../../secret") is None


def test_each_problem_is_one_sentence(server: RangeServer, recorded: Recorded, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(RunNotFound, match="there is no run at http"):
        find_run(Path(), f"{server.address}/nothing")
    with pytest.raises(AddressError, match=r"http://no-such-host\.invalid/run cannot be read: the host is unknown"):
        find_run(Path(), "http://no-such-host.invalid/run")
    server.status = 403
    with pytest.raises(AddressError, match="access is denied"):
        find_run(Path(), f"{server.address}/run?again")
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(AddressError, match=r"s3://bucket/run: .*: pip install fsspec s3fs"):
        find_run(Path(), "s3://bucket/run")


def test_a_file_that_vanishes_is_one_sentence(tmp_path: Path, recorded: Recorded):
    from shutil import copytree

    copytree(recorded[0], tmp_path / "served" / "run")
    with serving(tmp_path / "served") as server, opened(f"{server.address}/run") as remote:
        assert remote.rollouts.total() == 600
        (tmp_path / "served" / "run" / "record.sqlite").unlink()
        with pytest.raises(RecordDamaged, match=rf"^{server.address}/run: .*it has been removed"):
            remote.rollouts.page(Query(search="circle"))


def test_without_apsw_the_command_is_named(server: RangeServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "apsw", None)
    with opened(f"{server.address}/run") as remote:
        assert remote.rollouts.total() == 0
        assert remote.problems[0].endswith("pip install apsw")


def test_fsspecs_memory(recorded: Recorded, reader: RunReader):
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe("/runs/one/record.sqlite", (recorded[0] / "record.sqlite").read_bytes())
    with opened("memory://runs/one") as remote:
        same(remote, reader)


def test_a_run_in_s3(recorded: Recorded, reader: RunReader, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("s3fs", reason="s3 addresses need s3fs: pip install s3fs")
    moto = pytest.importorskip("moto.server", reason="the S3 server of this test is moto: pip install moto[server]")
    import s3fs  # pyright: ignore[reportMissingImports]

    server = moto.ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    try:
        with pytest.raises(AddressError, match=r"s3://runs/one cannot be read: access is denied"):
            find_run(Path(), "s3://runs/one")
        s3fs.S3FileSystem.clear_instance_cache()
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "testing")
        files = s3fs.S3FileSystem()
        files.mkdir("runs")
        files.pipe("runs/one/record.sqlite", (recorded[0] / "record.sqlite").read_bytes())
        with opened("s3://runs/one") as remote:
            same(remote, reader)
    finally:
        s3fs.S3FileSystem.clear_instance_cache()
        server.stop()


def test_a_run_and_rollouts_on_the_hub(recorded: Recorded, reader: RunReader, tmp_path: Path):
    """The commands, with the hub's own client: 2.4.0, over its API. A file of the hub is known by its hash."""
    repository = tmp_path / "hub" / "datasets" / "me" / "runs"
    shutil.copytree(recorded[0], repository / "one")
    (repository / "rollouts").mkdir()
    line = {"prompt": "q", "completion": "a", "reward": 0.5}
    (repository / "rollouts" / "a.jsonl").write_text(json.dumps(line) + "\n")

    def shown(*arguments: str, **environment: str) -> tuple[int, str, str]:
        command = [sys.executable, "-m", "grpo_tui.tui.cli", *arguments]
        given = {**os.environ, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "hf"), **environment}
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = ForkedProcess(command, env={"HF_ENDPOINT": hub.address, **given}, light=True, **pipes)
        out, error = process.communicate()
        return process.wait(), out, error

    with hub_of(tmp_path / "hub") as hub:
        run = "hf://datasets/me/runs/one"
        code, out, _ = shown("inspect", run, "--filter", "reward>0.5", "--json")
        assert code == 0
        expected = [row.id for row in reader.rollouts.page(Query(filter="reward>0.5"), limit=700)]
        assert [json.loads(each)["id"] for each in out.splitlines()] == expected
        hub.sent = 0
        code, out, _ = shown("inspect", "hf://datasets/me/runs@main/one", "--trajectory", expected[0], "--json")
        assert code == 0 and json.loads(out)["trajectory"]["id"] == expected[0]
        assert 0 < hub.sent < (repository / "one" / "record.sqlite").stat().st_size
        for dump in ("rollouts", "rollouts/a.jsonl"):
            code, out, _ = shown("export", f"hf://datasets/me/runs/{dump}", "--out", "-")
            assert code == 0 and [json.loads(each)["breakdown"]["total"] for each in out.splitlines()] == [0.5]
        hub.private = "hf_" + "x" * 34
        code, _, error = shown("inspect", run, "--json")
        assert code == 1 and error.startswith(f"{run} cannot be read: access is denied") and error.count("\n") == 1
        assert shown("inspect", run, "--json", HF_TOKEN=hub.private)[0] == 0
        code, _, error = shown("inspect", run, "--json", HF_HUB_OFFLINE="1")
        assert code == 1 and "HF_HUB_OFFLINE" in error and error.count("\n") == 1


def test_a_file_of_the_hub_that_changes_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    repository = tmp_path / "datasets" / "me" / "runs"
    repository.mkdir(parents=True)
    with hub_of(tmp_path) as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.address)
        template = hub.address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        file = repository / "record.sqlite"
        file.write_bytes(b"a" * 100)
        remote = remote_file("hf://datasets/me/runs/record.sqlite")
        assert remote.read(0, 3) == b"aaa"
        remote.renew()  # a file that was just opened counts as changed once
        version = remote.version
        remote.renew()
        assert remote.version == version
        file.write_bytes(b"b" * 100)  # of the same size: only the hash differs
        remote.renew()
        assert remote.version == version + 1 and remote.read(0, 3) == b"bbb"


def test_a_run_on_an_ssh_server(recorded: Recorded, reader: RunReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A server of asyncssh with real keys. A host that is not in known_hosts is refused."""
    asyncssh = pytest.importorskip("asyncssh", reason="ssh addresses need sshfs: pip install sshfs")
    sshfs = pytest.importorskip("sshfs", reason="ssh addresses need sshfs: pip install sshfs")
    from fsspec.asyn import get_loop, sync

    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True, mode=0o700)
    monkeypatch.setenv("HOME", str(home))
    host, mine = (asyncssh.generate_private_key("ssh-ed25519") for _ in range(2))
    (home / ".ssh" / "id_ed25519").write_bytes(mine.export_private_key())
    (home / ".ssh" / "id_ed25519").chmod(0o600)
    (tmp_path / "allowed").write_bytes(mine.export_public_key())

    async def start():
        return await asyncssh.listen(
            "127.0.0.1", 0, server_host_keys=[host], authorized_client_keys=str(tmp_path / "allowed"), sftp_factory=True
        )

    listening: Any = sync(get_loop(), start)
    port = listening.get_port()
    address = f"ssh://127.0.0.1:{port}{recorded[0]}"
    try:
        with pytest.raises(AddressError, match="known_hosts"):
            find_run(Path(), address)
        (home / ".ssh" / "known_hosts").write_bytes(b"[127.0.0.1]:%d " % port + host.export_public_key())
        with opened(address) as remote:
            same(remote, reader)
        sshfs.SSHFileSystem.clear_instance_cache()  # connect again
        (tmp_path / "allowed").write_bytes(host.export_public_key())
        (home / ".ssh" / "id_ed25519").write_bytes(asyncssh.generate_private_key("ssh-ed25519").export_private_key())
        with pytest.raises(AddressError, match="access is denied"):
            find_run(Path(), address + "/")
    finally:
        listening.close()
