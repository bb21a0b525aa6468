"""Chat with a run that serves: write, rate, correct, other versions, and answers without feedback."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo_tui.engine.launch.start import start_run
from grpo_tui.engine.launch.stop import stop_run
from grpo_tui.engine.runs.control.status import look
from grpo_tui.tui.app.destinations import Further
from tests.engine.online.test_online_run import _address, wait_for
from tests.engine.online.tiny import run_config
from tests.forked import forked_processes

from .drive import Driver, running

pytestmark = pytest.mark.xdist_group("chat")


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
    async with running(served.parent, Further("Chat", served), size=size) as driver:
        await until(driver, "enter writes a message")
        await driver.press("enter")
        await driver.type("what is it")
        await driver.press("enter")
        assert "what is it" in await until(driver, "policy · version")
        await driver.press("b")
        await until(driver, "version 0 (base)")
        await driver.press("1")
        await until(driver, "which learnt from it")


async def test_a_correction_is_accepted_and_the_inbox_offers_what_has_no_feedback(served: Path) -> None:
    async with running(served.parent, Further("Chat", served)) as driver:
        for text in ("red", "blue"):
            await driver.press("n", "enter")  # the context of this policy holds one message
            await driver.type(text)
            await driver.press("enter")
            await until(driver, "policy · version")
        await driver.press("e", "ctrl+u")  # the prompt holds the answer, which is noise of this policy
        await driver.type("green")
        await driver.press("enter")
        await until(driver, "feedback accepted", "learnt by update")
    async with running(served.parent, Further("Chat", served)) as driver:
        await driver.press("i")
        assert "red" in await until(driver, "certainty")
