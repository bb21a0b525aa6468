"""The tests' own processes: each test is reported once, a worker that dies fails its test, and output stays apart."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FIRST = """
import os, sys, pytest
from pathlib import Path

KEPT = sys.stderr

@pytest.fixture(scope="session")
def ending():
    yield
    Path(os.environ["ENDED"], str(os.getpid())).touch()

@pytest.mark.parametrize("n", range(40))
def test_own_output(n, ending, capfd):
    print("mine", n)
    KEPT.write("kept")
    assert capfd.readouterr().out == f"mine {n}\\n"

def test_wrong():
    print("seen of the wrong one")
    assert {"process": os.getpid(), "kept": 1} == {"kept": 1}
"""
SECOND = """
import os, signal, pytest

@pytest.mark.parametrize("n", range(40))
def test_own_output(n, capfd):
    print("other", n)
    assert capfd.readouterr().out == f"other {n}\\n"

def test_skipped():
    pytest.skip("not here")

def test_dies():
    os.kill(os.getpid(), signal.SIGKILL)

def test_never():
    pass
"""


def run(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib -q\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.workers", "--workers", "2", "-p", "no:cacheprovider"]
    others = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [*command, "--rootdir", str(folder), str(folder)],
        cwd=folder,
        env={**others, "PYTHONPATH": path, **variables},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_every_test_is_reported_once_and_a_worker_that_dies_fails_its_test(tmp_path: Path):
    (tmp_path / "test_first.py").write_text(FIRST)
    (tmp_path / "test_second.py").write_text(SECOND)
    ended = tmp_path / "ended"
    ended.mkdir()
    done = run(tmp_path, ENDED=str(ended))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "2 failed, 80 passed, 1 skipped" in done.stdout
    assert "Left contains 1 more item" in done.stdout, "the comparison of a failed assertion is printed"
    assert "FAILED test_second.py::test_dies" in done.stdout and "the worker ended with -9" in done.stdout
    assert "seen of the wrong one" in done.stdout and "mine 3" not in done.stdout
    assert len(list(ended.iterdir())) == 1, "the fixture of the session ends once, with its worker"


def test_a_test_that_ends_its_process_without_an_error_fails(tmp_path: Path):
    (tmp_path / "test_leaves.py").write_text("import os\n\ndef test_leaves():\n    os._exit(0)\n")
    done = run(tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAILED test_leaves.py::test_leaves" in done.stdout and "the worker ended with 0" in done.stdout
