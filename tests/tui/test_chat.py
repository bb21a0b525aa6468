"""Chat with a run that serves: write, rate, correct, other versions, and answers without feedback."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from grpo_tui.configs.writing import to_yaml
from grpo_tui.engine.launch.settings import read_config
from grpo_tui.engine.launch.start import start_run
from grpo_tui.engine.launch.stop import stop_run
from grpo_tui.engine.runs.control.status import look
from grpo_tui.engine.runs.write.writer import RunWriter
from grpo_tui.tui.app.destinations import Further, Live
from grpo_tui.tui.app.screens import chat
from grpo_tui.tui.app.screens.chat import ChatClient, ServerProblem
from tests.engine.online.test_online_run import _address, wait_for
from tests.engine.online.tiny import run_config
from tests.forked import ForkedProcess, forked_processes

from .drive import Driver, running


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("chat")
    config = run_config(folder / "policy", serve="127.0.0.1:0", snapshot_every=1, commit_every=1)
    config.environment.class_path = "grpo_tui.envs.chat.ChatEnv"
    with forked_processes():
        run = Path(start_run(config, runs_dir=folder / "runs", run_id="chat").path)
    try:
        wait_for(lambda: _address(run), "the address")
        yield run
    finally:
        stop_run(look(run), timeout=60, force=True)


async def until(driver: Driver, *texts: str) -> str:
    """Return the screen once it shows one of these texts."""
    for _ in range(600):
        if any(text in driver.text for text in texts):
            return driver.text
        await asyncio.sleep(0.1)
        await driver.pilot.pause()
    raise AssertionError(f"{texts} never came:\n{driver.text}")


@pytest.mark.parametrize("size", [(80, 24), (150, 45)])
async def test_a_rating_is_learnt_and_the_version_that_learnt_it_answers(served: Path, size: tuple[int, int]) -> None:
    async with running(served.parent, Further(served, "Chat"), size=size) as driver:
        await until(driver, "enter writes a message")
        await driver.press("enter")
        await driver.type("what is it")
        await driver.press("enter")
        assert "what is it" in await until(driver, "policy · version")
        await driver.press("b")
        await until(driver, "version 0 (base)")
        await driver.press("1")
        await until(driver, "trained on this feedback")


async def test_a_correction_is_accepted_and_the_inbox_offers_what_has_no_feedback(served: Path) -> None:
    async with running(served.parent, Further(served, "Chat")) as driver:
        for text in ("red", "blue"):
            await driver.press("n", "enter")  # the context of this policy holds one message
            await driver.type(text)
            await driver.press("enter")
            await until(driver, "policy · version")
        await driver.press("e", "ctrl+u")  # the prompt holds the answer, which is noise of this policy
        await driver.type("green")
        await driver.press("enter")
        await until(driver, "feedback accepted", "learned in update")
    async with running(served.parent, Further(served, "Chat")) as driver:
        await driver.press("i")
        assert "red" in await until(driver, "certainty")


async def test_a_chat_goes_on_after_a_failure_and_asks_only_for_outcomes_that_will_come(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    talks: list[list[str]] = []
    asked: list[str] = []
    accepted = iter([False, True])

    def write(self: ChatClient, model: str, messages: list[dict[str, str]], on_text: Any) -> dict[str, Any]:
        talks.append([m["content"] for m in messages])
        if len(talks) == 1:
            raise ServerProblem("the answer was cut off")
        on_text("it is red")
        return {"id": f"chatcmpl-{len(talks)}-a", "policy_version": 0}

    def outcome(self: ChatClient, identifier: str) -> dict[str, Any]:
        asked.append(identifier)
        raise ServerProblem("there is no feedback on the answer")

    monkeypatch.setattr(chat, "LOOK_S", 0.05)
    monkeypatch.setattr(ChatClient, "models", lambda self: ["tiny"])
    monkeypatch.setattr(ChatClient, "write", write)
    monkeypatch.setattr(ChatClient, "outcome", outcome)
    monkeypatch.setattr(
        ChatClient, "feedback", lambda self, **said: {"accepted": next(accepted), "reason": "updates are off"}
    )
    async with running(trained.parent, Further(trained, "Chat")) as driver:
        await driver.press("enter", *"one", "enter")
        assert "There is no answer yet." in await driver.press("1")
        await driver.press("enter", *"two", "enter")
        await until(driver, "policy · version")
        await driver.press("enter", *"three", "enter")
        assert talks == [["one"], ["two"], ["two", "it is red", "three"]]
        assert "feedback not accepted: updates are off" in await driver.press("1")
        await asyncio.sleep(0.3)
        assert asked == []
        await driver.press("2")
        while not asked:
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.3)
        assert asked == ["chatcmpl-3-a"]


async def test_an_answer_of_the_inbox_is_asked_again_as_it_was_asked(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[dict[str, str]]] = []
    talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "red?"}]
    answer = {"id": "1", "prompt": "Be brief. red?", "messages": talk, "answer": "no", "policy_version": 1}

    def write(self: ChatClient, model: str, messages: list[dict[str, str]], on_text: Any) -> dict[str, Any]:
        asked.append(messages)
        return {}

    monkeypatch.setattr(ChatClient, "models", lambda self: ["tiny"])
    monkeypatch.setattr(ChatClient, "write", write)
    monkeypatch.setattr(ChatClient, "unjudged", lambda self: [{**answer, "certainty": 0.5}])
    async with running(trained.parent, Further(trained, "Chat")) as driver:
        assert "Be brief. red?" in await driver.press("i")
        await driver.press("b")
        await until(driver, "version 0 (base)")
    assert asked == [talk]


async def test_feedback_that_waits_does_not_scroll(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = {"accepted": True, "reason": "it waits for the update worker"}
    monkeypatch.setattr(chat, "LOOK_S", 0.05)
    monkeypatch.setattr(ChatClient, "models", lambda self: ["tiny"])
    monkeypatch.setattr(ChatClient, "feedback", lambda self, **said: waits)
    monkeypatch.setattr(ChatClient, "outcome", lambda self, identifier: waits)
    async with running(trained.parent, Further(trained, "Chat"), size=(80, 12)) as driver:
        driver.screen.chat.exchanges.append(chat.ChatExchange("red?", [], "1", "word\n" * 40, 1))
        await driver.press("1")
        await until(driver, "it waits")
        await driver.press("g")
        await asyncio.sleep(0.4)
        assert "red?" in await driver.press()


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """A finished training with a checkpoint of step 3, whose adapters are a real tiny policy's."""
    config = run_config(tmp_path / "policy").model_copy(update={"mode": "rft"})
    run = tmp_path / "runs" / "trained"
    shutil.copytree(str(config.model.sft_adapters), run / "checkpoints" / "checkpoint-3")
    (run / "config.yaml").write_text(to_yaml(config))
    (run / "run.json").write_text(json.dumps({"id": "trained", "mode": "rft", "model": "tiny", "total_steps": 3}))
    writer = RunWriter(run)
    writer.metrics(3, {"rewards/total/mean": 0.5})
    writer.status("finished", step=3, total_steps=3)
    writer.close()
    return run


async def test_chat_with_a_checkpoint_of_a_finished_run(trained: Path) -> None:
    with forked_processes():
        async with running(trained.parent, Live(trained), size=(80, 24)) as driver:
            text = await driver.press("a")
            assert "steps 3 · base: before training" in text
            await driver.type("7")
            await driver.press("enter")
            await until(driver, "run trained has no")
            await driver.press("a", "3")
            await driver.pilot.press("enter")
            await until(driver, "loading the policy…")
            assert driver.view == "chat" and "trained@3" in driver.text and "inbox" not in driver.text
            server = driver.screen.reads.path
            assert "loading the policy" in await driver.press("enter"), "no question before there is somebody to answer"
            for _ in range(3):  # of a minute: the server imports torch
                with suppress(AssertionError):
                    await until(driver, "enter writes a message")
                    break
            await driver.press("enter")
            await driver.type("what is it")
            await driver.press("enter")
            await until(driver, "policy · version")
            config = read_config(server)
            assert (
                config.model.sft_adapters == str(trained / "checkpoints" / "checkpoint-3") and not config.online.updates
            )
            await driver.press("escape")
            assert driver.view == "live"
    wait_for(lambda: not look(server).active, "the end of the server")
    assert look(server).status in ("stopped", "finished"), look(server)


def test_the_server_of_a_checkpoint_stops_when_the_app_is_killed(trained: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, time, pathlib; from grpo_tui.engine.evaluation.subjects import start_chat; "
        "print(start_chat(sys.argv[1], pathlib.Path(sys.argv[2])).path, flush=True); time.sleep(600)"
    )
    command = [sys.executable, str(program), str(trained), str(trained.parent)]
    with ForkedProcess(command, stdout=subprocess.PIPE, text=True) as app:
        assert app.stdout is not None
        server = Path(app.stdout.readline().strip())
        wait_for(lambda: look(server).status == "running", "the server", 180)
        app.kill()
    wait_for(lambda: not look(server).active, "the end of the server", 60)
    assert look(server).status == "stopped", look(server)


async def test_a_dump_and_an_evaluation_have_no_policy(trained: Path) -> None:
    (trained / "run.json").write_text(json.dumps({"id": "trained", "mode": "eval"}))
    async with running(trained.parent, Live(trained)) as driver:
        await driver.press("a")
        assert "You can only chat with policies" in driver.text
