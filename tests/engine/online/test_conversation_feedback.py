"""Feedback on the last turn of a conversation rewards all turns, and learning masks the results of tools."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from grpo_tui.engine.online.store.sqlite_queue import SqliteQueue
from grpo_tui.engine.online.store.update_task import UpdateTask
from grpo_tui.engine.runs.control import requests as control
from grpo_tui.engine.runs.paths import OnlineFolder
from grpo_tui.engine.runs.read.reader import RunReader

from .calling import DONE, KNOWN, add_tool, calling_config, trained_policy
from .chats import Served, served
from .test_online_run import wait_for

pytestmark = pytest.mark.together("called_tools")


def ask_for_a_sum(run: Served) -> Any:
    messages: list[Any] = [{"role": "user", "content": "Add 2 and 3."}]
    called = run.ask(messages, tools=[add_tool()]).choices[0].message
    result = {"role": "tool", "tool_call_id": called.tool_calls[0].id, "content": "5"}
    return run.ask([*messages, called, result], tools=[add_tool()])


def test_feedback_on_the_last_turn(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> None:
    folder = tmp_path_factory.mktemp("conversation_feedback")
    config = calling_config(trained_policy(request.config.cache), folder, learn_from="feedback", commit_every=1)
    with served(config, folder) as run:
        paused = control.request(run.run_dir, "pause")
        wait_for(lambda: control.outcome(run.run_dir, paused, "worker"), "the pause")
        answer = ask_for_a_sum(run)
        assert answer.choices[0].message.content == DONE
        said = httpx.post(f"{run.url}/v1/feedback", json={"id": answer.id, "verdict": "right"}).json()
        assert said["accepted"] is True
        queue = SqliteQueue(OnlineFolder(run.run_dir).queue)
        wait_for(lambda: queue.depth() == 1, "the task")
        [(name, _)] = queue.tasks("queued")
        task = UpdateTask.from_bytes(queue.payload(name) or b"")

        [row] = task.experience.rows
        _, words = run.policy
        agent = [
            [int(t) for t, a, n in zip(row.token_ids, row.agent_mask, row.turn, strict=True) if a and n == i]
            for i in (0, 1)
        ]
        assert [words.decode(tokens) for tokens in agent] == [KNOWN["Add 2 and 3."] + "<|im_end|>", DONE + "<|im_end|>"]
        returns = task.reward_tensor.sum(-1).flip(1).cumsum(1).flip(1)  # [1, 2], the reward from each turn on
        assert (returns > 0.5).all()

        control.request(run.run_dir, "resume")
        outcome = wait_for(
            lambda: (found := httpx.get(f"{run.url}/v1/feedback/{answer.id}").json()).get("update") and found,
            "the update",
        )
        assert outcome["update"] == 1
        rollout = answer.model_extra["grpo_tui"]["trajectory_id"]
        reader = RunReader(run.run_dir)
        wait_for(lambda: any(row.id == rollout for row in reader.rollouts.page()), "the rollout in the record")
        [use] = wait_for(lambda: reader.bodies.uses(rollout), "the use of the rollout")
        assert use.kind == "applied"
