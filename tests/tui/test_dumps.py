"""Dumps of other frameworks in the app: opened, filtered, stepped, compared, searched, and in the list of runs."""

from __future__ import annotations

import json
import resource
import shutil
from pathlib import Path

import pytest

from grpo_tui.engine.imports.opening import open_dump
from grpo_tui.tui.app.destinations import Live, Runs, Stepper, Trajectories

from .drive import running, settle
from .terminal import ESCAPE, TELLING_COMMAND, app_terminal, settled

PEERS = Path(__file__).parents[1] / "engine" / "imports" / "peer_dumps"


@pytest.mark.parametrize(
    ("dump", "damaged", "problem"),
    [
        ("trl", "unparsed", "not JSON"),
        ("verl/rollout", "unparsed", "not JSON"),
        ("verifiers-v1", "error and not unparsed", "rror"),
        ("inspect-ai", "unparsed", "arse"),
    ],
)
def test_a_person_looks_into_what_another_framework_wrote(
    dump: str, damaged: str, problem: str, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    shutil.copytree(PEERS / dump, kept)
    kept.chmod(0o755)
    variables = {"XDG_STATE_HOME": tmp_path, "GRPO_TUI_RUNS": tmp_path / "runs"}
    words = ("-c", TELLING_COMMAND, "inspect", str(kept))
    with app_terminal(*words, cwd=tmp_path, forked=False, variables=variables) as screen:
        screen.see("1 of 24", "reward")
        settled(screen)
        screen.press("f")
        settled(screen)
        screen.press(f"{damaged}\r")
        screen.see(f"· {damaged}")
        settled(screen)
        screen.press("\r")
        screen.see("├─ steps")
        for _ in range(8):  # to the turn at which it went wrong
            if problem in settled(screen):
                break
            screen.press("l")
        assert problem in screen.text, screen.text
        screen.press("d")
        screen.see("diff", "group")
        settled(screen)
        screen.press(ESCAPE)
        screen.see("step ")
        settled(screen)
        screen.press(ESCAPE)
        screen.see(f"trajectories · {damaged}")
        settled(screen)
        screen.press("c")
        screen.see("of 24")
        settled(screen)
        screen.press("/")
        settled(screen)
        screen.press("square\r")
        screen.see("“square”", "of 12")
        settled(screen)
        screen.press("q")
        assert screen.wait() == 0


async def test_dumps_opened_lately_stand_in_the_list_of_runs_and_open_from_there(runs: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"prompt": "2+2?", "completion": "4", "reward": 1.0, "step": 1}\n')
    open_dump(file)
    async with running(runs, Runs()) as app:
        assert "mine.jsonl" in app.text and "dump" in app.text
        at = next(i for i, r in enumerate(app.screen.rows) if r.info.id == "mine.jsonl")
        assert at == len(app.screen.rows) - 1, "the newest, and below the runs of the folder"
        line = next(line for line in app.text.splitlines() if "mine.jsonl" in line)
        assert "finished" not in line and f"{at} run" in app.text and "1 dump" in app.text
        app.screen.table.move_to(at)
        await app.press("enter")
        assert "1 of 1" in app.text
        with file.open("a") as out:
            out.write('{"prompt": "2+3?", "completion": "5", "reward": 1.0, "step": 1}\n{"prompt": "torn')
        for _ in range(200):
            await app.pilot.pause(0.1)
            await settle(app.pilot)
            if "1 of 2" in app.text:
                break
        assert "1 of 2" in app.text, "a file that grows is followed; its torn last line waits"
    assert file.exists()


async def test_dumps_of_one_file_name_are_told_apart_by_their_folders(runs: Path, tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        file = tmp_path / name / "rollouts.jsonl"
        file.write_text('{"prompt": "2+2?", "completion": "4", "reward": 1.0, "step": 1}\n')
        open_dump(file)
    async with running(runs, Runs(), size=(160, 40)) as app:
        assert all(
            any(line.rstrip(" │").endswith(f"/{n}") for line in app.text.split("\n")) for n in ("first", "second")
        )
        await app.press("f")
        await app.pilot.press(*"second", "enter")
        await settle(app.pilot)
        assert [row.info.facts["dump"] for row in app.screen.rows] == [str(tmp_path / "second" / "rollouts.jsonl")]


async def test_a_dump_is_removed_from_the_list_and_its_files_stay(runs: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"prompt": "2+2?", "completion": "4", "reward": 1.0, "step": 1}\n')
    open_dump(file)
    async with running(runs, Runs()) as app:
        app.screen.table.move_to(len(app.screen.rows) - 1)
        await app.pilot.pause(0.1)
        assert "opened" in app.text and "finished  after" not in app.text
        await app.press("D")
        assert "Forget mine.jsonl" in app.text
        await app.press("k", "enter", "r")
        await settle(app.pilot)
        assert "mine.jsonl" not in [row.info.id for row in app.screen.rows]
    assert file.exists()


async def test_runs_and_dumps_of_other_frameworks_are_compared(runs: Path) -> None:
    open_dump(PEERS / "verl" / "rollout", whole=True)
    open_dump(PEERS / "trl", whole=True)
    async with running(runs, Runs()) as app:
        for name in ("rollout", "trl"):
            at = next(i for i, r in enumerate(app.screen.rows) if r.info.id == name)
            app.screen.table.move_to(at)
            await app.press("space")
        await app.press("c")
        assert "compare · rollout · trl" in app.text and "reward" in app.text


async def test_the_header_says_how_far_the_index_is(runs: Path, tmp_path: Path) -> None:
    file = tmp_path / "large.jsonl"
    row = json.dumps({"prompt": "p", "completion": "word " * 400, "reward": 1.0, "step": 1})
    file.write_text(f"{row}\n" * 15_000)
    opened = open_dump(file)
    assert opened.more
    async with running(runs, Trajectories(opened.folder)) as app:
        seen = text = ""
        for _ in range(600):
            await app.pilot.pause(0.05)
            text = app.text
            seen += text.splitlines()[0]
            if "of 15,000" in text:
                break
        assert "indexing" in seen and "of 15,000" in text


async def test_the_header_says_that_the_disk_is_full(runs: Path, tmp_path: Path) -> None:
    file = tmp_path / "large.jsonl"
    row = json.dumps({"prompt": "p", "completion": "word " * 400, "reward": 1.0, "step": 1})
    file.write_text(f"{row}\n" * 15_000)
    opened = open_dump(file)
    largest = max(path.stat().st_size for path in opened.folder.iterdir())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest + (1 << 18), hard))  # the indexer's too
    try:
        async with running(runs, Trajectories(opened.folder)) as app:
            for _ in range(1000):
                await app.pilot.pause(0.01)
                if "stopped" in app.text:
                    break
            assert "indexing stopped at" in app.text.splitlines()[0] and "disk" in app.text.splitlines()[0]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_what_the_trainer_computed_of_each_token_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """prime-rl's annotations: log-probs under the trainer, their mismatch with the sampler's, entropies."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = open_dump(PEERS / "prime-rl" / "since-2026-09", whole=True).folder
    async with running(tmp_path / "runs", Stepper(folder, 1)) as app:
        assert "tokens by author" in await app.press("t")
        assert "tokens by log-prob" in await app.press("t")
        assert "tokens by advantage" in await app.press("t")
        assert "tokens by trainer's log-prob" in await app.press("t")
        text = await app.press("t")
        assert "tokens by mismatch" in text and "apart" in text and "mean ratio" in text
        text = await app.press("t")
        assert "tokens by entropy" in text and "mean 1.250 nats" in text
        assert "tokens by" not in await app.press("t"), "nothing was recorded of a reference"


async def test_the_dashboard_of_a_dump_shows_what_is_there_and_says_what_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = open_dump(PEERS / "verl" / "rollout_v0", whole=True).folder
    async with running(tmp_path / "runs", Live(folder)) as app:
        text = app.text
        assert "1 failure, 1 hint" in text and "NaN or infinity" in text, "the findings of `check`"
        assert "segment_object_at" in text and "75 %" in text, "what was done, by step"
        scores = [json.loads(line)["format"] for line in (PEERS / "verl/rollout_v0/3.jsonl").open()]
        mean = sum(s for s in scores if s is not None) / sum(s is not None for s in scores)
        assert f"{mean:.2f}" in next(line for line in text.splitlines() if "format" in line)
        assert "not recorded" in text and "c saves one" not in text
        assert "x stop" not in text and "checkpoint " not in text.splitlines()[-1]
        assert "suggestion:" in await app.click("NaN or infinity", 2)


async def test_dumps_of_two_frameworks_are_compared_by_their_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("verl/rollout", "areal"):
        open_dump(PEERS / name, whole=True)
    async with running(tmp_path / "runs", Runs()) as app:
        await app.press("space", "j", "space")
        text = await app.press("c")
        assert "compare" in text and "AReaL rollouts" in text and "verl rollouts" in text
        assert "mean of rewards/total/mean" in await app.press("a")


async def test_a_list_of_texts_without_rewards_shows_what_differs(tmp_path: Path) -> None:
    """Texts take the place of routes, lengths that of rewards, and columns that say nothing are left out."""
    file = tmp_path / "texts.jsonl"
    same = {"prompt": "Count to ten.", "program": "1.2.0"}
    completions = ["one two three", "", "ten nine eight"]
    lines = [{**same, "completion": text, "grade": n, "step": 1} for n, text in enumerate(completions, 1)]
    file.write_text("\n".join(map(json.dumps, lines)))
    async with running(tmp_path, Trajectories(open_dump(file, whole=True).folder)) as app:
        text = await app.press()
        assert all(shown in text for shown in ("one two three", "(empty)", "ten nine eight", "grade"))
        titles = next(line for line in text.splitlines() if "answer" in line and "prompt" in line).split()
        assert "grade" in titles and not {"program", "A", "tokens", "split"}.intersection(titles)
        assert "█" in text and "no rewards to show" not in text
