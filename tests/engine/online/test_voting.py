"""Votes, pseudo-labels without one's own vote, the gate and the learning rate."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_tui.configs.sections.online import OnlineConfig
from grpo_tui.engine.online.voting import canonical, gate, learning_rate, vote
from grpo_tui.engine.runs.types import NeighbourVote

answers = st.lists(st.sampled_from(["a", "b", "c", None]), min_size=2, max_size=9)


@given(answers)
def test_a_candidate_has_no_vote_in_its_own_label(given_answers: list[str | None]) -> None:
    outcome = vote(given_answers)
    for i, (answer, label, correct) in enumerate(zip(given_answers, outcome.labels, outcome.correct, strict=True)):
        others = Counter(a for j, a in enumerate(given_answers) if j != i and a is not None)
        best = others.most_common()
        unique = bool(best) and (len(best) == 1 or best[0][1] > best[1][1])
        assert label == (best[0][0] if unique else None)
        assert correct is (None if not unique else answer == label)


def test_disagreement_is_not_rewarded() -> None:
    """If a candidate could vote for itself, each of these would be right."""
    outcome = vote(["a", "b"])
    assert outcome.labels == ("b", "a")
    assert outcome.correct == (False, False)


def test_changing_ones_own_answer_never_changes_ones_label() -> None:
    for own in ("a", "b", "c", None):
        assert vote([own, "a", "a", "b"]).labels[0] == "a"


def test_case_and_space_do_not_matter() -> None:
    outcome = vote(["Red ", "red", " RED", "blue"])
    assert canonical(outcome.answer) == "red"
    assert outcome.confidence == 0.75
    assert outcome.correct == (True, True, True, False)


def test_missing_answers_lower_the_confidence() -> None:
    outcome = vote(["a", "a", None, None])
    assert (outcome.answer, outcome.confidence) == ("a", 0.5)
    assert outcome.correct == (True, True, False, False)
    assert vote([None, ""]).answer is None


def test_neighbours_vote_with_their_weight() -> None:
    assert vote(["a", "b"], [NeighbourVote("r", "b", 0.5)]).answer == "b"
    outcome = vote(["a", "a", "b"], [NeighbourVote("r", "b", 0.5)])
    assert outcome.answer == "a"
    assert outcome.confidence == pytest.approx(2 / 3.5)
    assert vote(["a", None], [NeighbourVote("r", "a", 0.5)]).labels == ("a", "a")


def test_the_gate() -> None:
    assert gate(vote(["a", "a", "a"]), 0.5).open
    assert not gate(vote(["a"]), 0.5).open  # no other candidate: no label
    assert "below" in gate(vote(["a", "b", "c"]), 0.5).reason
    assert "no candidate" in gate(vote([None, None]), 0.5).reason
    assert gate(vote(["a", "a", "b"]), 0.5).open
    tied = vote(["a", "b"])  # each is labelled by the other: both answers were wrong to somebody
    assert tied.labels == ("b", "a") and gate(tied, 0.5).open
    assert not gate(tied, 0.51).open


def test_learning_rate_by_the_initial_answer() -> None:
    config = OnlineConfig(lr_correction=9.0, lr_adaptive_max=4.0, lr_adaptive_min=1.0, min_confidence=0.5)
    assert learning_rate(vote(["b", "a", "a"]), config) == (9.0, "lr_correction")
    rate, kind = learning_rate(vote(["a", "a", "b", "b", "a"]), config)
    assert kind == "lr_adaptive"
    assert rate == pytest.approx(4.0 - 3.0 * (0.6 - 0.5) / 0.5)


@given(st.lists(st.sampled_from(["a", "b"]), min_size=2, max_size=12), st.floats(0, 1))
def test_lr_adaptive_falls_with_confidence_within_its_bounds(given_answers: list[str], threshold: float) -> None:
    outcome = vote(["a", *given_answers])
    config = OnlineConfig(lr_correction=1.0, lr_adaptive_max=0.5, lr_adaptive_min=0.1, min_confidence=threshold)
    rate, kind = learning_rate(outcome, config)
    assert rate == 1.0 if kind == "lr_correction" else 0.1 - 1e-12 <= rate <= 0.5 + 1e-12
