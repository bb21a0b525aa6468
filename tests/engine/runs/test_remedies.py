"""A remedy stands beside each finding."""

from __future__ import annotations

import re
from pathlib import Path

from grpo_tui.engine.runs.control.alerts import REMEDIES, remedy, remedy_of
from grpo_tui.rewards.text_detectors import DETECTORS

ROOT = Path(__file__).parents[3]


def test_each_detector_has_one():
    said = re.compile(r'Finding\(\s*"(\w+)"|detector="(\w+)"')
    sources = [p for room in ("rewards", "engine") for p in (ROOT / room).rglob("*.py")]
    named = {a or b for path in sources for a, b in said.findall(path.read_text(encoding="utf-8"))}
    assert DETECTORS.keys() <= REMEDIES.keys()
    assert named <= REMEDIES.keys(), f"without a remedy: {named - REMEDIES.keys()}"


def test_it_names_what_it_is_about_and_a_writers_own_goes_first():
    assert "coherence" in remedy("advantage_share", "coherence") and "{" not in "".join(map(remedy, REMEDIES))
    assert remedy_of({"detector": "errors", "remedy": "Ask Ada."}) == "Ask Ada."
    assert remedy_of({}) == ""
