"""A suggestion stands beside each finding."""

from __future__ import annotations

import re
from pathlib import Path

from grpo_tui.engine.runs.control.alerts import SUGGESTIONS, suggestion, suggestion_of
from grpo_tui.rewards.diagnosis import DETECTORS

ROOT = Path(__file__).parents[3]


def test_each_detector_has_one():
    said = re.compile(r'Finding\(\s*"(\w+)"|detector="(\w+)"')
    sources = [p for room in ("rewards", "engine") for p in (ROOT / room).rglob("*.py")]
    named = {a or b for path in sources for a, b in said.findall(path.read_text(encoding="utf-8"))}
    assert {d.reports for d in DETECTORS.values()} <= SUGGESTIONS.keys(), "the names in findings"
    assert named <= SUGGESTIONS.keys(), f"without a suggestion: {named - SUGGESTIONS.keys()}"


def test_it_names_what_it_is_about_and_a_writers_own_goes_first():
    assert "coherence" in suggestion("advantage_share", "coherence") and "{" not in "".join(
        map(suggestion, SUGGESTIONS)
    )
    assert suggestion_of({"detector": "errors", "suggestion": "Ask Ada."}) == "Ask Ada."
    assert suggestion_of({}) == ""


def test_a_hint_that_the_policy_improves_asks_for_no_change():
    assert suggestion("kl_rise", severity="warning") and not suggestion("kl_rise", severity="hint")
    assert suggestion("truncation", severity="hint") and not suggestion("groups_without_variance", severity="good")
    assert suggestion_of({"detector": "entropy_collapse", "severity": "hint"}) == ""
