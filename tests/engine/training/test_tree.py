"""Tree rollouts: branches repeat turns of their parent, and advantages and gradients are those of the definition."""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_tui.engine.agents.session import TransformersSession
from grpo_tui.engine.agents.transformers_agent import TransformersAgent
from grpo_tui.engine.rollouts.advantages import advantage_method
from grpo_tui.engine.rollouts.rollout import Rollout
from grpo_tui.engine.rollouts.runner import RolloutRunner, Row
from grpo_tui.engine.rollouts.trial import TrialError
from grpo_tui.envs.agent import AgentTurn
from grpo_tui.envs.base import StepResult
from grpo_tui.envs.multi_turn import MultiTurnEnv
from grpo_tui.envs.tree import BranchError
from grpo_tui.rewards.advantages.base import EPSILON, Returns
from tests.properties import drawn

from .parts import PlaybackEnv, make_trainer, policy, tokenizer

GROUP, FRESH = 6, 3


class LengthsEnv(MultiTurnEnv):
    """Pays by the length of a turn, and ends at some lengths. `restless`: it answers each time otherwise."""

    answers = 0

    def __init__(self, tokenizer: Any = None, *, restless: bool = False) -> None:
        super().__init__(tokenizer, max_turns=5, prompt_style="terse")
        self.restless = restless

    def reset(self, task: Any) -> Any:
        return [], [{"role": "user", "content": f"start {task['index']}"}]

    def step(self, state: Any, call: Any) -> StepResult:
        text = str(call.arguments["text"])
        state.append(len(text))
        type(self).answers += 1
        told = f"add {sum(state)}" + f" {self.answers}" * self.restless
        return StepResult(told, float(len(text) % 3), done=len(state) > 1 and len(text) % 5 == 0)


def rows(n: int, **config: Any) -> list[Row]:
    return [Row(f"{__name__}.LengthsEnv", config, {"index": i}) for i in range(n)]


def agent(model: Any = None) -> TransformersAgent:
    return TransformersAgent(model or policy(), tokenizer(), max_turn_tokens=4, max_trajectory_tokens=256)


def sampled(tasks: int, acting: TransformersAgent | None = None, **config: Any) -> list[Rollout]:
    runner = RolloutRunner(acting or agent(), tokenizer(), GROUP, fresh=FRESH)
    return runner.run(rows(tasks, **config), seed=5)


def branches(rollouts: list[Rollout]) -> list[tuple[Rollout, Rollout, int]]:
    """Each rollout that branches, its parent, and how many turns it repeats."""
    by_place = {(r.group, r.index): r for r in rollouts}
    found = [(r, r.trajectory.branch) for r in rollouts if r.trajectory is not None]
    return [(r, by_place[r.group, branch[0]], branch[1]) for r, branch in found if branch is not None]


def test_branches_repeat_their_parent_and_then_sample_on_their_own():
    rollouts = sampled(4)
    found = branches(rollouts)
    assert len(found) == 4 * (GROUP - FRESH) and {r.index for r, _, _ in found} == set(range(FRESH, GROUP))
    assert len({turns for _, _, turns in found}) > 1
    for own, parent, turns in found:
        a, b = own.trajectory, parent.trajectory
        assert a is not None and b is not None and a.group == b.group and 0 < turns < len(b.steps)
        assert [(s.text, s.observation, s.reward) for s in a.steps[:turns]] == [
            (s.text, s.observation, s.reward) for s in b.steps[:turns]
        ]
        shared = int((parent.turn_ids < turns).sum())
        assert np.array_equal(own.token_ids[:shared], parent.token_ids[:shared])
        assert np.array_equal(own.turn_ids[:shared], parent.turn_ids[:shared])
        assert not own.agent_mask[:shared].any() and own.agent_mask[shared]
        assert own.prompt_length == parent.prompt_length and own.turns == len(a.steps)
    assert any(own.trajectory.steps[k].text != parent.trajectory.steps[k].text for own, parent, k in found)  # type: ignore[union-attr]


def test_log_probs_of_branches_are_those_of_one_pass():
    model = policy()
    for r in sampled(3, agent(model)):
        with torch.no_grad():
            logits = model(torch.as_tensor(r.token_ids)[None]).logits[0, :-1].log_softmax(-1)
        expected = logits.gather(1, torch.as_tensor(r.token_ids)[1:, None])[:, 0].numpy()
        assert r.logprobs is not None
        assert np.abs(np.where(r.agent_mask, r.logprobs, 0)[1:] - np.where(r.agent_mask[1:], expected, 0)).max() < 1e-4


class OwnPaceSession(TransformersSession):
    async def act_alone(self, row: int) -> AgentTurn:
        return self.act([row])[0]


def test_rollouts_at_their_own_pace_branch_alike():
    alone = agent()
    alone.sessions = OwnPaceSession
    for a, b in zip(sampled(2), sampled(2, alone), strict=True):
        assert np.array_equal(a.token_ids, b.token_ids) and np.array_equal(a.agent_mask, b.agent_mask)


def test_rollouts_of_one_turn_leave_the_others_nothing_to_branch_from():
    class OneTurn(LengthsEnv):
        def step(self, state: Any, call: Any) -> StepResult:
            return StepResult("", 1.0, done=True)

    trial = OneTurn().run_trial([{"index": 0}], agent(), GROUP, seed=1, fresh=FRESH)
    assert [t.branch for t in trial["trajectories"]] == [None] * GROUP
    assert all(t.agent_mask.any() for t in trial["tokens"])


def test_an_environment_that_does_not_repeat_itself_is_refused_in_one_sentence():
    with pytest.raises(BranchError, match=r"is not deterministic.*training\.advantages: tree.*turn 1 returned"):
        sampled(1, restless=True)


def test_an_environment_with_trials_of_its_own_is_refused_in_one_sentence():
    runner = RolloutRunner(agent(), tokenizer(), GROUP, fresh=FRESH)
    path = f"{PlaybackEnv.__module__}.PlaybackEnv"
    with pytest.raises(TrialError, match=r"PlaybackEnv has its own run_trial, which cannot branch"):
        runner.run([Row(path, {}, {"index": 0})], seed=1)
    assert runner.run([Row(path, {}, {"index": 0})], seed=1, split="eval")


@st.composite
def trees(draw):
    """Groups in which rollouts branch from any earlier one; each turn has a label of its own where it was sampled."""
    batch: list[list[Returns]] = []
    labels: list[list[list[Any]]] = []
    for _ in range(draw(st.integers(1, 3))):
        group: list[Returns] = []
        turns_of: list[list[Any]] = []
        for i in range(draw(st.integers(1, 6))):
            able = [k for k, r in enumerate(group) if len(r.turns) > 1]
            parent = draw(st.sampled_from([None, *able]))
            repeated = 0 if parent is None else draw(st.integers(1, len(group[parent].turns) - 1))
            before = [] if parent is None else list(group[parent].turns[:repeated])
            reward = st.sampled_from([0.0, 1.0]) if draw(st.booleans()) else st.floats(-5, 5, width=32)
            new = draw(st.lists(reward, min_size=1, max_size=4))
            scored = draw(st.sampled_from([True, True, True, False]))
            group.append(Returns([*before, *new], scored=scored, branch=None if parent is None else (parent, repeated)))
            turns_of.append(
                [*([] if parent is None else turns_of[parent][:repeated]), *((i, t) for t in range(len(new)))]
            )
        batch.append(group)
        labels.append(turns_of)
    return batch, labels


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def std(values: list[float]) -> float:
    return (sum((v - mean(values)) ** 2 for v in values) / (len(values) - 1)) ** 0.5 if len(values) > 1 else 0.0


def by_definition(
    group: list[Returns], labels: list[list[Any]], i: int, t: int, scale: str, every: list[float]
) -> float:
    """Compare beginnings label by label: who shares turn t of rollout i, and who shares what came before its branch."""
    alive = [k for k, r in enumerate(group) if r.scored]

    def later(rollouts: list[int]) -> list[float]:
        return [sum(group[k].turns[t:]) for k in rollouts if len(group[k].turns) > t]

    def sharing(turns: int) -> list[int]:
        return [k for k in alive if labels[k][:turns] == labels[i][:turns]]

    own = sharing(t + 1)
    wider = [found for turns in range(1, t + 1) if len(found := sharing(turns)) > len(own)]
    began = wider[-1] if wider else alive
    value = mean(later(own))
    divisor = {"group": std(later(alive)) + EPSILON, "batch": std(every) + EPSILON, "none": 1.0}[scale]
    return 0.5 * (value - mean(later(alive))) / divisor + 0.5 * (value - mean(later(began))) / divisor


@drawn(60, 1000, trees(), st.sampled_from(["group", "batch", "none"]))
def test_advantages_equal_their_definition(made, scale):
    batch, labels = made
    method = advantage_method("tree")
    every = [float(sum(r.turns[t:])) for group in batch for r in group if r.scored for t in range(len(r.turns))]
    for group, turns_of, formulas, signal in zip(
        batch, labels, method.compare(batch, scale), method.signal(batch), strict=True
    ):
        for i, (r, formula) in enumerate(zip(group, formulas, strict=True)):
            assert (formula is None) is not r.scored
            for t in range(len(r.turns) if formula is not None else 0):
                assert formula is not None
                found, new = formula.advantage(t), r.branch is None or t >= r.branch[1]
                expected = by_definition(group, turns_of, i, t, scale, every) if new else 0.0
                assert found == pytest.approx(expected, abs=1e-6, rel=1e-6)
                assert signal or abs(found or 0.0) < 1e-5 / (1.0 if scale == "none" else EPSILON)


@settings(max_examples=50, deadline=None)
@given(trees())
def test_groups_without_branches_have_the_advantages_of_turn(made):
    batch = [[Returns(r.turns, scored=r.scored) for r in group] for group in made[0]]
    tree, turn = (advantage_method(name).compare(batch, "group") for name in ("tree", "turn"))
    for ours, theirs in zip(itertools.chain(*tree), itertools.chain(*turn), strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            assert [ours.advantage(t) for t in range(len(ours.steps))] == pytest.approx(
                [theirs.advantage(t) for t in range(len(ours.steps))]
            )


def test_by_numbers():
    """A rollout opens a door at its third turn; a branch from its second turn fails, and a fresh one fails, too."""
    right, wrong, fresh = Returns([0.0, 0.0, 1.0]), Returns([0.0, 0.0, 0.0], branch=(0, 1)), Returns([0.0])
    (found,) = advantage_method("tree").compare([[right, wrong, fresh]], "none")
    advantages = [[formula.advantage(t) for t in range(len(formula.steps))] for formula in found if formula]
    third = 1 / 3
    assert advantages[0] == pytest.approx([0.5 - third, 0.5, 0.5])  # ½ · (1 − ½) + ½ · (1 − ½) after the branch
    assert advantages[1] == pytest.approx([0.0, -0.5, -0.5])
    assert advantages[2] == pytest.approx([-third])
    assert [t.name for t in found[1].terms(0)] == ["repeated turn"]  # type: ignore[union-attr]


def test_the_gradient_is_that_of_each_sampled_turn_once(tmp_path):
    """Against float64 passes over each distinct turn, found by the tokens up to its end, over the number of tokens."""
    model = policy(lora=True)
    exact = copy.deepcopy(model).double()
    trainer = make_trainer(
        tmp_path,
        [
            {"env_class_path": f"{__name__}.LengthsEnv", "env_config": "{}", "task_data": f'{{"index": {i}}}'}
            for i in (0, 1)
        ],
        model=model,
        agent=agent(model),
        advantages="tree",
        num_generations=GROUP,
        per_device_train_batch_size=2 * GROUP,
        loss_type="dapo",
    )
    trainer.runner.fresh = FRESH
    model.train()
    trainer.compute_loss(
        model, trainer._generate_and_score_completions([{"row": i} for i in (0, 1) for _ in range(GROUP)])
    ).backward()
    rollouts = trainer.rollouts.generated
    assert len({len(r) for r in rollouts}) > 2 and len(branches(rollouts)) == 2 * (GROUP - FRESH)

    loss, tokens, copies = torch.zeros((), dtype=torch.float64), 0, Counter[tuple[int, ...]]()
    for number in (0, 1):
        group = [r for r in rollouts if r.group == number]
        ends = [[step.token_span[1] for step in r.trajectory.steps] for r in group]
        earned = [[float(step.reward) for step in r.trajectory.steps] for r in group]
        nodes: dict[tuple[int, ...], tuple[int, int]] = {}
        for i, r in enumerate(group):
            for t, end in enumerate(ends[i]):
                copies[tuple(r.token_ids[:end].tolist())] += 1
                nodes.setdefault(tuple(r.token_ids[:end].tolist()), (i, t))

        def sharing(prefix: Any, group=group) -> list[int]:
            return [k for k, r in enumerate(group) if tuple(r.token_ids[: len(prefix)].tolist()) == tuple(prefix)]

        for node, (i, t) in nodes.items():

            def later(found: list[int], t=t, earned=earned) -> list[float]:
                return [sum(earned[k][t:]) for k in found if len(earned[k]) > t]

            own = sharing(node)
            wider = [f for end in ends[i][:t] if len(f := sharing(group[i].token_ids[:end])) > len(own)]
            value, all_of_them = mean(later(own)), later(list(range(GROUP)))
            low = mean(later(wider[-1])) if wider else mean(all_of_them)
            advantage = (value - 0.5 * mean(all_of_them) - 0.5 * low) / (std(all_of_them) + EPSILON)
            start = group[i].trajectory.steps[t].token_span[0]
            ids = torch.as_tensor(node)[None]
            logprobs = exact(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[start - 1 :, 0]
            loss, tokens = loss - advantage * logprobs.sum(), tokens + len(node) - start
    assert max(copies.values()) > 1
    (loss / tokens).backward()
    compared = 0
    for (name, ours), theirs in zip(model.named_parameters(), exact.parameters(), strict=True):
        if ours.grad is not None:
            scale = max(1.0, float(theirs.grad.abs().max()))
            assert float((ours.grad.double() - theirs.grad).abs().max()) < 1e-5 * scale, name
            compared += float(theirs.grad.abs().max()) > 1e-4
    assert compared
