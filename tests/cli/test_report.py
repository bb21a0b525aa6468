"""The page of `--report`: its data is bounded, hostile texts stay text, and a real browser shows it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import resource
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from grpo_tui import Message, Recorder, Rollout
from grpo_tui.tui.cli import report
from grpo_tui.tui.cli.main import run

HOSTILE = (
    "</script><script>document.title='owned'</script><!-- <script> --><img src=x onerror=\"document.title='owned'\">"
    "\u202eevil\u2066\x1b]0;owned\x07 &amp; @DATA@ \u2028 \ud800"
)


def recorded(home: Path, name: str, rewards: list[float], text: str = "plain") -> None:
    with Recorder(name, runs_dir=home) as recorder:
        for step, reward in enumerate(rewards, 1):
            answer = (Message("assistant", f"{text} {step}"),)
            rollouts = [
                Rollout(prompt=(Message("user", text),), completion=answer, reward=reward + i, group=f"g{step}")
                for i in range(4)
            ]
            recorder.rollouts(step, rollouts)
            recorder.metrics(step, {"success/train": reward, text[:60]: 1.0})


class Page(HTMLParser):
    """The scripts of a page, by type, and everything that could fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts: list[str] = []
        self.fetching: list[str] = []
        self.inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.inside = tag == "script"
        if self.inside:
            self.scripts.append("")
        self.fetching += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href", "onerror", "onload")]

    def handle_endtag(self, tag: str) -> None:
        self.inside = False

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.scripts[-1] += data


def page(home: Path, *words: str) -> tuple[str, dict[str, Any]]:
    out = home / "page.html"
    assert run(["inspect", *words, "--runs-dir", str(home), "--report", str(out)]) == 0
    text = out.read_text(encoding="utf-8")
    return text, json.loads(Page(text).scripts[0])


def test_hostile_texts_stay_text(tmp_path: Path):
    recorded(tmp_path, "evil", [0.0, 1.0], HOSTILE)
    text, data = page(tmp_path, "evil")
    parsed = Page(text)
    assert len(parsed.scripts) == 2 and parsed.fetching == []
    digest = base64.b64encode(hashlib.sha256(parsed.scripts[1].encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in text
    assert not re.search("[\u202a-\u202e\u2066-\u2069\u2028\x1b\x07]", text)
    (name, prompt, _), *_ = data["rollouts"][0]["prompt"]
    assert name == "user" and prompt.startswith("</script><script>") and "‹202E›evil‹2066›␛]0;owned␇" in prompt
    assert "@DATA@" in prompt


def test_the_page_says_how_much_of_a_run_it_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from grpo_tui.tui.cli import report

    recorded(tmp_path, "long", [i / 60 for i in range(60)], "word " * 4000)
    text, data = page(tmp_path, "long")
    assert data["held"].startswith("This page holds 240 of 240 rollouts, evenly spaced.")
    assert max(len(f[1]) for r in data["rollouts"] for f in r["prompt"]) < report.TEXT + 40
    monkeypatch.setattr(report, "ROLLOUTS", 40)
    _, data = page(tmp_path, "long")
    assert len(data["rollouts"]) == 40 and data["held"].startswith("This page holds 40 of 240 rollouts")
    assert {r["step"] for r in data["rollouts"]} >= {1, 2} and max(r["step"] for r in data["rollouts"]) > 50
    monkeypatch.setattr(report, "BYTES", 200_000)
    text, data = page(tmp_path, "long")
    assert 4 < len(data["rollouts"]) < 20 and len(text) < 600_000
    _, data = page(tmp_path, "long", "--filter", "step:3..4")
    assert {r["step"] for r in data["rollouts"]} == {3, 4}
    assert data["held"].startswith("This page holds 8 of 8 rollouts that match step:3..4")


def test_a_page_that_does_not_fit_on_the_disk_keeps_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    recorded(tmp_path / "runs", "mine", [1.0])
    monkeypatch.setattr(report, "draw", lambda home, run: "")
    monkeypatch.setattr(report, "page", lambda *given: "x" * 2_000_000)
    out = tmp_path / "out" / "page.html"
    out.parent.mkdir()
    out.write_text("old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, limits[1]))
    try:
        assert run(["inspect", "mine", "--runs-dir", str(tmp_path / "runs"), "--report", str(out)]) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert f"--report: {out} cannot be written: File too large" in capsys.readouterr().err
    assert [file.read_text() for file in out.parent.iterdir()] == ["old"]


def test_two_runs_are_compared(tmp_path: Path):
    recorded(tmp_path, "first", [0.0, 0.25])
    recorded(tmp_path, "second", [0.0, 0.75, 0.5])
    text, data = page(tmp_path, "first", "--against", "second")
    assert data["runs"] == ["first", "second"]
    assert data["curves"]["success/train"] == [[[1, 0.0], [2, 0.25]], [[1, 0.0], [2, 0.75], [3, 0.5]]]
    assert "<td>success/train</td><td>0.25</td><td>0.50</td><td>+0.25</td>" in text
    assert [sum(r["run"] == i for r in data["rollouts"]) for i in (0, 1)] == [8, 12]
    words = ["inspect", "first", "--runs-dir", str(tmp_path), "--against", "second"]
    assert run(words) == 2
    assert run([*words, "--report", str(tmp_path / "both.svg")]) == 2


def test_a_browser_shows_the_rollouts_and_runs_nothing_of_theirs(tmp_path: Path):
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium is installed")
    recorded(tmp_path, "evil", [0.0, 1.0], HOSTILE)
    page(tmp_path, "evil")
    words = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=3000", "--dump-dom"]
    done = subprocess.run([*words, (tmp_path / "page.html").as_uri()], capture_output=True, text=True, timeout=60)
    assert "8 of 8 match, mean reward 2" in done.stdout
    assert "<title>grpo-tui: evil</title>" in done.stdout
    assert "&lt;/script&gt;&lt;script&gt;document.title" in done.stdout, "the text is shown"


def test_the_curves_of_the_dashboard_come_first(tmp_path: Path):
    with Recorder("many", runs_dir=tmp_path) as recorder:
        for step in (1, 2):
            recorder.metrics(step, {f"a/{i:03}": step for i in range(80)} | {"success/train": step, "kl/mean": step})
    _, data = page(tmp_path, "many")
    assert list(data["curves"])[:3] == ["success/train", "kl/mean", "a/000"] and len(data["curves"]) == 82
