"""The cause of several findings comes first, and names its symptoms."""

from __future__ import annotations

import itertools
from dataclasses import replace

from grpo_tui.engine.runs.control.alerts import SUGGESTIONS
from grpo_tui.rewards.causes import EXPLAINS, SYMPTOMS, Found, ranked
from grpo_tui.rewards.detectors import Finding, Severity
from grpo_tui.rewards.diagnosis import DETECTORS


def found(detector: str, began: int, severity: Severity = "warning") -> Found:
    finding = Finding("It is broken.", 1.0, 0.5, severity=severity, detector=detector)
    return Found(finding, began + 2, began + 3, 2, began)


def causes(*faults: Found) -> list[tuple[str, str]]:
    return [(f.finding.detector, f.cause) for f in ranked(faults)]


def test_the_table_names_detectors():
    assert {*EXPLAINS, *itertools.chain(*EXPLAINS.values()), *SYMPTOMS} <= {*DETECTORS, *SUGGESTIONS}


def test_of_two_that_explain_each_other_the_earlier_is_the_cause():
    limit_first = causes(found("kl_rise", 2), found("truncation", 1))
    leap_first = causes(found("truncation", 3), found("kl_rise", 2))
    assert limit_first == [("truncation", ""), ("kl_rise", "truncation")]
    assert leap_first == [("kl_rise", ""), ("truncation", "kl_rise")]


def test_of_two_that_begin_together_the_more_specific_is_the_cause():
    assert causes(found("rejected_answers", 1), found("one_answer", 1))[0] == ("one_answer", "")
    assert causes(found("trained_tokens", 1), found("surprising_tokens", 1))[0] == ("surprising_tokens", "")


def test_a_fault_of_the_grader_is_there_before_the_policy_meets_it():
    assert causes(found("kl_rise", 2), found("reward_hack", 5)) == [("reward_hack", ""), ("kl_rise", "reward_hack")]


def test_what_a_component_pays_for_comes_before_its_share_of_the_advantage():
    assert causes(found("advantage_share", 1), found("silence_paid", 1))[0] == ("silence_paid", "")


def test_a_symptom_that_was_noticed_earlier_is_no_cause():
    assert causes(found("length_collapse", 2), found("kl_rise", 9)) == [("kl_rise", ""), ("length_collapse", "kl_rise")]
    assert causes(found("length_collapse", 2)) == [("length_collapse", "")], "alone it is all there is"


def test_without_steps_a_behaviour_is_not_called_the_result_of_another_fault():
    faults = [replace(found(name, 1), began=None) for name in ("not_finite", "unreadable_calls")]
    assert causes(*faults) == [("not_finite", ""), ("unreadable_calls", "")]


def test_causes_come_before_symptoms_and_warnings_before_hints():
    order = causes(
        found("kl_rise", 1, "hint"), found("length_collapse", 2), found("noisy_reward", 1), found("errors", 5)
    )
    symptoms = {("errors", "noisy_reward"), ("length_collapse", "noisy_reward")}
    assert (order[0], set(order[1:3]), order[3]) == (("noisy_reward", ""), symptoms, ("kl_rise", ""))


def test_every_chain_of_causes_ends():
    """All detectors at once, in several orders of their beginnings: no finding explains itself through others."""
    names = sorted(DETECTORS)
    for shift in range(len(names)):
        ordered = ranked(found(name, (i * 7 + shift) % 11) for i, name in enumerate(names))
        place = {f.finding.detector: i for i, f in enumerate(ordered)}
        assert all(f.cause == "" or place[f.cause] < place[f.finding.detector] for f in ordered)
