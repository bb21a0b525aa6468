"""The rules one by one: what they catch, what they leave alone, and what they say about it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_tui.configs.sections.rewards import PenaltyAmounts, PenaltyRuleConfig, RewardsConfig
from grpo_tui.envs.calls import ToolCall
from grpo_tui.envs.checks import find_problem
from grpo_tui.envs.trajectory import Trajectory
from grpo_tui.rewards.breakdown import Penalty
from grpo_tui.rewards.components import RewardError
from grpo_tui.rewards.orchestrator import RewardOrchestrator
from grpo_tui.rewards.penalties import BUILT_IN, Episode, PenaltyRule
from grpo_tui.rewards.penalties.rules import load_rule, make_rules

from .episodes import TOOLS, context, good, step, trajectory


def penalties_of(found: Trajectory, rules: list[PenaltyRule] | None = None) -> list[Penalty]:
    episode = Episode(found)
    checked = [rule.check(episode, s) for s in found.steps for rule in rules or make_rules(RewardsConfig())]
    return [p for p in checked if p is not None]


def only(found: Trajectory) -> Penalty:
    [penalty] = penalties_of(found)
    return penalty


def test_a_right_episode_costs_nothing():
    assert penalties_of(good()) == []


def test_a_mask_that_does_not_exist_is_named_with_those_that_do():
    penalty = only(trajectory(step(0, "GET_PROPERTIES", {"mask": 7}, masks=["1", "2"])))
    assert penalty.rule == "missing_prerequisite"
    assert penalty.why == "GET_PROPERTIES(mask=7): no mask 7 exists here; masks so far: 1, 2."
    assert penalty.right == "Use mask 1, 2, or call SEGMENT_OBJECT_AT first."
    assert penalty.saw == {"mask": 7, "masks": ["1", "2"]}
    assert penalty.limit == "mask: an existing mask"


def test_without_any_mask_the_order_is_wrong_whatever_the_argument():
    for arguments in ({"mask": 1}, {}):
        penalty = only(trajectory(step(0, "GET_PROPERTIES", arguments)))
        assert penalty.rule == "missing_prerequisite"
        assert penalty.right == "Call SEGMENT_OBJECT_AT first."


def test_a_coordinate_outside_the_image():
    penalty = only(trajectory(step(0, "SEGMENT_OBJECT_AT", {"x": 900, "y": 40})))
    assert penalty.rule == "invalid_argument"
    assert penalty.saw == {"x": 900}
    assert penalty.limit == "0 <= x < 128"
    assert penalty.why == "SEGMENT_OBJECT_AT(x=900, y=40): x is 900."
    assert penalty.right == "Call SEGMENT_OBJECT_AT(x, y) so that 0 <= x < 128."
    assert only(trajectory(step(0, "SEGMENT_OBJECT_AT", {"x": 0, "y": 96}))).limit == "0 <= y < 96"


def test_all_faults_of_a_call_make_one_penalty():
    penalty = only(trajectory(step(0, "SEGMENT_OBJECT_AT", {"x": "left", "yy": 4})))
    assert penalty.amount == RewardsConfig().penalties.invalid_argument
    assert penalty.why == (
        'SEGMENT_OBJECT_AT(x="left", yy=4): x is "left", y is missing, yy is no argument of SEGMENT_OBJECT_AT '
        "(did you mean y?)."
    )
    assert penalty.right == "Call SEGMENT_OBJECT_AT(x, y) so that x is a whole number, and y is given."


@pytest.mark.parametrize(
    ("box", "right"),
    [
        ([0, 0, 129, 10], "box has x0 >= 0, y0 >= 0, x1 <= 128, y1 <= 96"),
        ([10, 0, 5, 10], "box is [x0, y0, x1, y1] with x0 < x1 and y0 < y1"),
        ([1, 2, 3], "box is four numbers [x0, y0, x1, y1] with x0 < x1 and y0 < y1"),
        ("all", "box is four numbers [x0, y0, x1, y1] with x0 < x1 and y0 < y1"),
    ],
)
def test_boxes(box: Any, right: str):
    assert only(trajectory(step(0, "READ_TEXT", {"box": box}))).limit == right
    assert penalties_of(trajectory(step(0, "READ_TEXT", {"box": [0, 0, 128, 96]}))) == []


def test_wrong_modality_names_the_tools_that_fit():
    penalty = only(trajectory(step(0, "TRACK_OBJECT", {"mask": 1}, masks=["1"])))
    assert penalty.saw == {"tool": "TRACK_OBJECT", "modality": "image"}
    assert penalty.limit == "modality: video"
    assert penalty.why == "TRACK_OBJECT(mask=1): TRACK_OBJECT works on video, and the input here is image."
    assert "GET_PROPERTIES(mask)" in penalty.right
    assert "TRACK_OBJECT" not in penalty.right


def test_an_unknown_tool_names_the_nearest_one():
    penalty = only(trajectory(step(0, "GET_PROPERTY", {"mask": 1})))
    assert penalty.rule == "unknown_tool"
    assert penalty.right.startswith("Did you mean GET_PROPERTIES(mask)? Tools: SEGMENT_OBJECT_AT(x, y), ")


def test_an_environment_without_declared_tools_is_left_alone():
    assert penalties_of(trajectory(step(0, "ANYTHING"), tools=())) == []


def test_an_unparsable_call_says_why():
    penalty = only(trajectory(step(0, None, text="hm", parse_error="no JSON object in the turn")))
    assert penalty.rule == "unparsable_call"
    assert penalty.why == "No call could be read: no JSON object in the turn."
    assert penalty.saw == {"text": "hm"}


def test_no_final_answer_sits_on_the_last_step_and_is_never_the_environments_fault():
    steps = (step(0, "SEGMENT_OBJECT_AT", {"x": 3, "y": 4}), step(1, "GET_PROPERTIES", {"mask": 1}, masks=["1"]))
    penalty = only(trajectory(*steps, answer=None, stop_reason="max_turns"))
    assert (penalty.rule, penalty.step) == ("no_final_answer", 1)
    assert penalty.why == "The episode ended without an answer: all turns were used up after 2 steps."
    for stop_reason in ("error", "timeout"):
        assert penalties_of(trajectory(*steps, answer=None, stop_reason=stop_reason)) == []
    assert penalties_of(trajectory(*steps, answer=None, stop_reason="max_turns", tools=TOOLS[:-1])) == []


def test_what_a_model_wrote_is_quoted_without_control_characters_and_cut():
    hostile = "\x1b]0;owned\x07[/red]" + "A" * 5000
    for found in (
        trajectory(step(0, hostile)),
        trajectory(step(0, None, text=hostile, parse_error=hostile)),
        trajectory(step(0, "SEGMENT_OBJECT_AT", {hostile: hostile, "x": hostile, "y": 1})),
        trajectory(step(0, "GET_PROPERTIES", {"mask": hostile}, masks=["1"])),
    ):
        for penalty in penalties_of(found):
            for text in (penalty.why, penalty.right, penalty.limit):
                assert "\x1b" not in text
                assert "\x07" not in text
                assert len(text) < 1000


values = st.one_of(
    st.integers(-5, 200),
    st.floats(width=32),
    st.text(max_size=3),
    st.booleans(),
    st.none(),
    st.lists(st.integers(-5, 150), max_size=5),
    st.sampled_from([1, "1", "2", 2, 0, 127, 128, math.nan, math.inf]),
)
names = st.sampled_from(["x", "y", "mask", "box", "text", "z"])


@settings(max_examples=400, deadline=None)
@given(
    action=st.sampled_from([t.name for t in TOOLS] + ["DANCE", None]),
    arguments=st.dictionaries(names, values, max_size=3),
    masks=st.sampled_from([(), ("1",), ("1", "2")]),
    modality=st.sampled_from(["image", "video", "text"]),
)
def test_what_environments_refuse_is_penalised_and_nothing_else(
    action: str | None, arguments: dict[str, Any], masks: tuple[str, ...], modality: str
):
    refused = find_problem(ToolCall(action, arguments), TOOLS, context(*masks, modality=modality)) is not None
    found = penalties_of(trajectory(step(0, action, arguments, masks=masks, modality=modality)))
    assert bool(found) == refused
    for penalty in found:
        assert penalty.amount < 0
        assert penalty.why.endswith(".")
        assert penalty.right.endswith(".")
        assert penalty.limit


def test_amounts_come_from_the_configuration_and_zero_switches_a_rule_off():
    config = RewardsConfig(penalties=PenaltyAmounts(wrong_modality=-3.0, unknown_tool=0.0))
    rules = make_rules(config)
    assert {r.id for r in rules} == {r.id for r in BUILT_IN} - {"unknown_tool"}
    assert {r.id: r.amount for r in rules}["wrong_modality"] == -3.0


OWN_RULE = '''
from grpo_tui.rewards.penalties import PenaltyRule

class TooManyZooms(PenaltyRule):
    """More than `most` zooms."""

    id = "too_many_zooms"

    def __init__(self, amount=-0.5, most=1):
        super().__init__(amount)
        self.most = most

    def check(self, episode, step):
        zooms = sum(s.action == "ZOOM_IN" for s in episode.steps[: step.index + 1])
        if step.action != "ZOOM_IN" or zooms <= self.most:
            return None
        return self.penalty(step, saw={"zooms": zooms}, limit=f"at most {self.most}",
                            why=f"Zoomed {zooms} times.", right="Answer from what you saw.")

class Broken(TooManyZooms):
    id = "broken"

    def check(self, episode, step):
        return 1 / 0

class Bonus(TooManyZooms):
    id = "bonus"
    def __init__(self, amount=0.5):
        super().__init__(amount)

class NotARule: ...
class NoCheck(PenaltyRule):
    id = "x"
class NoId(TooManyZooms):
    id = ""
'''


@pytest.fixture
def own(tmp_path: Path) -> str:
    file = tmp_path / "my_rules.py"
    file.write_text(OWN_RULE)
    return str(file)


def test_a_users_own_rule_from_a_file(own: str):
    config = RewardsConfig(
        w_curiosity=0,
        w_coherence=0,
        penalty_rules=[PenaltyRuleConfig(class_path=f"{own}:TooManyZooms", amount=-0.25, options={"most": 2})],
    )
    tools = (*TOOLS, TOOLS[0].__class__("ZOOM_IN"))
    zooming = trajectory(*(step(i, "ZOOM_IN") for i in range(4)), tools=tools)
    found = RewardOrchestrator(config=config)._calculate_penalties(zooming)
    mine = [p for p in found if p.rule == "too_many_zooms"]
    assert [(p.step, p.amount, p.saw) for p in mine] == [(2, -0.25, {"zooms": 3}), (3, -0.25, {"zooms": 4})]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Nothing", "has no class Nothing"),
        ("NotARule", "is not a penalty rule"),
        ("NoCheck", "has no method check"),
        ("NoId", "has no id"),
        ("Bonus", "a penalty is a negative number"),
    ],
)
def test_a_rule_that_cannot_be_used_is_refused_in_a_sentence(own: str, name: str, said: str):
    with pytest.raises(RewardError, match=said):
        load_rule(PenaltyRuleConfig(class_path=f"{own}:{name}"))


def test_wrong_options_missing_files_and_two_rules_of_one_id(own: str):
    with pytest.raises(RewardError, match="does not take these options"):
        load_rule(PenaltyRuleConfig(class_path=f"{own}:TooManyZooms", options={"least": 1}))
    with pytest.raises(RewardError, match="there is no file"):
        load_rule(PenaltyRuleConfig(class_path="nowhere.py:Rule"))
    with pytest.raises(RewardError, match="there is no module no_such_package here"):
        load_rule(PenaltyRuleConfig(class_path="no_such_package.rules.Rule"))
    twice = RewardsConfig(penalty_rules=[PenaltyRuleConfig(class_path=f"{own}:TooManyZooms")] * 2)
    with pytest.raises(RewardError, match="two penalty rules have the id too_many_zooms"):
        make_rules(twice)


def test_a_rule_that_fails_says_where(own: str):
    config = RewardsConfig(penalty_rules=[PenaltyRuleConfig(class_path=f"{own}:Broken")])
    with pytest.raises(RewardError, match="penalty rule broken failed at step 0 of trajectory t: ZeroDivision"):
        RewardOrchestrator(config=config)._calculate_penalties(good())
