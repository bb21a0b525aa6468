"""A real pseudo-terminal with a program in it: keys in, the screen as a person sees it out."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import pyte

from tests.forked import ForkedProcess

ANSWERS = {b"\x1b[6n": b"\x1b[1;1R", b"\x1b[c": b"\x1b[?62;c"}
"""What a plain terminal replies to the questions that programs ask it."""
PICTURE = re.compile(rb"\x1b[P_].*?\x1b\\", re.S)
"""Data of a picture (kitty, sixel), which pyte would write as text."""
UNFINISHED = re.compile(rb"\x1b(?:[P_].*)?\Z", re.S)


class Terminal:
    """Runs `command` with its terminal being this object."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str] | None = None,
        rows: int = 48,
        columns: int = 160,
        forked: bool = False,
        light: bool = False,
    ) -> None:
        """forked: `command` is a program of this Python. It becomes a fork (`tests.forked`), as do its trainings.
        light: of the server that has loaded the app only."""
        self.screen = pyte.Screen(columns, rows)
        self.stream = pyte.ByteStream(self.screen)
        self.raw = bytearray()
        self._unfinished = b""
        self.exit_code: int | None = None
        variables = {**(os.environ if env is None else env), "TERM": "xterm-256color", "COLORTERM": "truecolor"}
        for name in ("TMUX", "SSH_CONNECTION", "NO_COLOR", "LINES", "COLUMNS"):
            variables.pop(name, None)
        self.process: ForkedProcess | None = None
        if forked:
            self.fd, inner = pty.openpty()
            fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            self.process = ForkedProcess(
                command,
                stdin=inner,
                stdout=inner,
                stderr=inner,
                cwd=cwd,
                env=variables,
                start_new_session=True,
                light=light,
            )
            os.close(inner)
            self.pid = self.process.pid
            return
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            try:
                os.chdir(cwd)
                os.execvpe(command[0], list(command), variables)
            finally:
                os._exit(127)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.exit_code is None:
            os.kill(self.pid, signal.SIGKILL)
            self.exit_code = self._ended(0)
        os.close(self.fd)

    @property
    def text(self) -> str:
        """The whole screen."""
        # not `display` of pyte: it fails where one half of a wide character was overwritten
        cells, columns = self.screen.buffer, range(self.screen.columns)
        return "\n".join("".join(cells[y][x].data for x in columns).rstrip() for y in range(self.screen.lines))

    def press(self, keys: str) -> None:
        """Type these characters."""
        os.write(self.fd, keys.encode())

    def see(self, *wanted: str, within: float = 60.0) -> str:
        """Wait until all of `wanted` stand on the screen together, and give the screen."""
        end = time.monotonic() + within
        while True:
            text = self.text
            missing = [w for w in wanted if w not in text]
            if not missing:
                return text
            left = end - time.monotonic()
            if left <= 0 or not self._pump(min(left, 0.1)):
                raise AssertionError(f"not on the screen: {missing}; the screen is\n{self.text}")

    def settle(self, quiet: float = 0.4, limit: float = 30.0) -> str:
        """Wait until nothing has changed for `quiet` seconds in which the program waited, and give the screen."""
        end = time.monotonic() + limit
        last, since = self.text, time.monotonic()
        while time.monotonic() < end and time.monotonic() - since < quiet and self._pump(0.05):
            if self.text != last or not self._waits():
                last, since = self.text, time.monotonic()
        return self.text

    def _waits(self) -> bool:
        """Whether no thread of the program has anything to do. On a busy machine one may not get a core for a while."""
        with suppress(OSError):  # a thread or the program has ended
            stats = [(task / "stat").read_text() for task in Path(f"/proc/{self.pid}/task").iterdir()]
            return all(stat.rpartition(")")[2].split()[0] not in ("R", "D") for stat in stats)
        return True

    def wait(self, within: float = 60.0) -> int:
        """Wait for the program to end, and give its exit code."""
        end = time.monotonic() + within
        while self.exit_code is None:
            if time.monotonic() > end:
                raise AssertionError(f"the program has not ended; the screen is\n{self.text}")
            self._pump(0.1)
            code = self._ended(os.WNOHANG)
            if code is not None:
                while self._pump(0.1):
                    pass
                self.exit_code = code
        return self.exit_code

    def _ended(self, options: int) -> int | None:
        """The exit code, or None while the program lives."""
        if self.process is not None:
            return self.process.poll() if options else self.process.wait()
        pid, status = os.waitpid(self.pid, options)
        return os.waitstatus_to_exitcode(status) if pid else None

    def _pump(self, seconds: float) -> bool:
        """Read what the program wrote within `seconds`; False once it is gone."""
        ready, _, _ = select.select([self.fd], [], [], seconds)
        if not ready:
            return True
        try:
            data = os.read(self.fd, 1 << 16)
        except OSError:  # the other end is closed
            return False
        for question, answer in ANSWERS.items():
            if question in data:
                os.write(self.fd, answer)
        self.raw += data
        text = PICTURE.sub(b"", self._unfinished + data)
        rest = UNFINISHED.search(text)
        end = len(text) if rest is None else rest.start()
        self._unfinished = text[end:]
        self.stream.feed(text[:end])
        return bool(data)
