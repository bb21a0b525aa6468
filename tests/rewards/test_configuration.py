"""Bad settings are refused at start-up, with file, line, key and what would be right."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo_tui.configs.errors import ConfigError
from grpo_tui.configs.loading import load_config
from grpo_tui.configs.sections.rewards import ExtraComponentConfig, RewardsConfig
from grpo_tui.rewards.components import RewardError
from grpo_tui.rewards.orchestrator import RewardOrchestrator
from grpo_tui.rewards.penalties import BUILT_IN

from .episodes import step, trajectory

REFUSED = {
    "NaN": ("rewards:\n  w_task: .nan", 2, "rewards.w_task", ["NaN", "must be a number ≥ 0"]),
    "infinity": ("rewards:\n  w_penalty: .inf", 2, "rewards.w_penalty", ["Infinity is not allowed"]),
    "negative weight": ("rewards:\n  w_task: -1", 2, "rewards.w_task", ["-1", "≥ 0"]),
    "negative temperature": ("training:\n  temperature: -1", 2, "training.temperature", ["number > 0"]),
    "unknown key": (
        "rewards:\n  w_curiousity: 1",
        2,
        "rewards.w_curiousity",
        ["nearest valid key: rewards.w_curiosity"],
    ),
    "unknown rule": (
        "rewards:\n  penalties:\n    unknown_tools: -1",
        3,
        "rewards.penalties.unknown_tools",
        ["nearest valid key: rewards.penalties.unknown_tool"],
    ),
    "a penalty that pays": (
        "rewards:\n  penalties:\n    unknown_tool: 0.5",
        3,
        "rewards.penalties.unknown_tool",
        ["0.5 would be a bonus", "negative"],
    ),
    "unknown normalisation": (
        "rewards:\n  normalization:\n    task: z-score",
        3,
        "rewards.normalization.task",
        ["zscore, scale_only, group, none"],
    ),
    "a rule that is no class": (
        "rewards:\n  penalty_rules:\n    - class_path: my rule",
        3,
        "rewards.penalty_rules",
        ["package.module.Class or path/to/file.py:Class"],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_file_line_key_and_what_would_be_right(name: str, tmp_path: Path):
    text, line, key, said = REFUSED[name]
    file = tmp_path / "my.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as refused:
        load_config(file)
    [message] = str(refused.value).splitlines()
    assert message.startswith(f"{file}:{line}: {key}")
    for part in said:
        assert part in message


def test_every_built_in_rule_has_its_amount():
    amounts = RewardsConfig().penalties
    assert {rule.id: rule.amount for rule in BUILT_IN} == amounts.model_dump()


def test_files_of_own_classes_that_are_not_there_are_named_before_a_run(tmp_path: Path):
    file = tmp_path / "my.yaml"
    file.write_text(
        "environment:\n  class_path: gone.py:E\nrewards:\n  penalty_rules:\n    - class_path: nowhere.py:R\n"
    )
    with pytest.raises(ConfigError) as refused:
        load_config(file, paths=True)
    first, second = str(refused.value).splitlines()
    assert first.startswith(f"{file}:2: environment.class_path: there is no file or folder gone.py")
    assert "rewards.penalty_rules.0.class_path: there is no file or folder nowhere.py" in second


@pytest.mark.parametrize(("limit", "cache"), [(100, 40), (10, 10), (64, 1)])
def test_the_punishment_of_long_rollouts_is_that_of_dapo(limit: int, cache: int):
    """Equation 13 of arXiv 2503.14476, on the tokens of all turns."""
    extra = {"overlong": ExtraComponentConfig(weight=0.5, options={"limit": limit, "cache": cache})}
    config = RewardsConfig(w_curiosity=0.0, w_coherence=0.0, extra_components=extra)
    lengths = [1, limit - cache, limit - cache + 1, limit, limit + 1, 5 * limit]
    rows = [
        trajectory(
            step(0, "READ_TEXT", token_span=(7, 7 + n // 2)),
            step(1, "ANSWER", token_span=(n, n + n - n // 2)),
            id=str(n),
        )
        for n in lengths
    ]
    result = RewardOrchestrator(config=config).calculate_total_reward(rows, [True] * len(rows))
    for n, breakdown in zip(lengths, result.breakdowns, strict=True):
        expected = 0.0 if n <= limit - cache else max((limit - cache - n) / cache, -1.0) if n <= limit else -1.0
        found = [at.components.get("overlong") for at in breakdown.steps]
        assert found[0] is None and found[1] is not None
        assert (found[1].raw, found[1].contribution) == pytest.approx((expected, 0.5 * expected))


def test_a_cache_above_the_limit_is_refused():
    extra = {"overlong": ExtraComponentConfig(options={"limit": 10, "cache": 11})}
    with pytest.raises(RewardError, match=r"cache must be above 0 and at most the limit \(10\), not 11"):
        RewardOrchestrator(config=RewardsConfig(extra_components=extra))
