"""What cannot be written or was not recorded: other requests go on, and rows of a file are asked again."""

from __future__ import annotations

import queue
import threading
from collections import deque
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
import torch

from grpo_tui.engine.agents.live_batch import LiveBatch
from grpo_tui.engine.online.serve.answers import Answer, OpenTurns
from grpo_tui.engine.online.serve.live_answers import LiveAnswers
from grpo_tui.engine.online.serve.requests import NotWritten, Request, RequestSource, ServerEnds
from grpo_tui.engine.online.serve.serving import Serving
from grpo_tui.engine.online.serve.watching import FailureWatch
from grpo_tui.engine.online.serve.weights import WeightFollower
from grpo_tui.engine.online.store.snapshots import SnapshotReader
from grpo_tui.rewards.functions import RewardFunctionError

from .answering import conversation, engine, requests

OUT_OF_MEMORY = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


class Callers:
    """Conversations in a running batch, and what became of each."""

    def __init__(self, folder: Path) -> None:
        self.engine = engine(answer="last_number", max_turn_tokens=6)
        follower = WeightFollower(self.engine.model, SnapshotReader(folder), poll_s=1.0, on_problem=pytest.fail)
        self.answers: list[Answer] = []
        self.failed: dict[int, Exception] = {}
        self.live = LiveAnswers(
            self.engine, follower, self.answers.append, lambda r, error: self.failed.update({r.number: error})
        )

    def ask(self, text: str = "what is it?", number: int = 1, **sampling: Any) -> Request:
        request = conversation(text, number=number, temperature=1.0, **sampling)
        assert self.live.begin(request)
        return request

    def finish(self) -> list[int]:
        """Write until nothing is left, and return whose requests were answered."""
        while self.live.busy:
            self.live.advance()
        self.live.pause()
        assert not self.live._streams and not self.live.running.urgent
        return sorted(answer.request.number for answer in self.answers)


def failing_once(monkeypatch: pytest.MonkeyPatch, name: str, owner: Any = LiveBatch) -> None:
    whole = getattr(owner, name)

    def fail(*_: Any) -> Any:
        monkeypatch.setattr(owner, name, whole)
        raise OUT_OF_MEMORY

    monkeypatch.setattr(owner, name, fail)


def test_a_prompt_that_finds_no_memory_costs_its_request_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    callers = Callers(tmp_path)
    callers.ask(number=1, max_tokens=20)
    callers.live.advance()
    callers.ask("red", number=2, texts=2, stop=("e",))
    failing_once(monkeypatch, "_encode")
    callers.live.advance()
    callers.ask("it is", number=3)
    assert callers.finish() == [1, 3]
    assert str(callers.failed[2]) == "OutOfMemoryError: CUDA out of memory"


@pytest.mark.parametrize("where", ["step", "_enter"])
def test_a_batch_that_fails_costs_the_requests_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    callers = Callers(tmp_path)
    callers.ask(number=1, max_tokens=20, texts=3)
    if where == "step":
        callers.live.advance()
    failing_once(monkeypatch, where)
    callers.live.advance()
    callers.ask("red", number=2)
    assert callers.finish() == [2]
    assert isinstance(callers.failed[1], NotWritten)


def test_weights_that_find_no_memory_cost_the_requests_of_their_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    callers = Callers(tmp_path)
    callers.ask(number=1)
    failing_once(monkeypatch, "_merged_for", LiveAnswers)
    callers.live.advance()
    callers.ask("red", number=2)
    assert callers.finish() == [2] and set(callers.failed) == {1}


def test_an_answer_is_learnt_without_a_vote_whose_samples_find_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    callers = Callers(tmp_path)
    callers.ask()
    callers.finish()
    [answer], drawn = callers.answers, []
    callers.live.draw(answer, 5, lambda rollouts: drawn.append(callers.engine.widened(answer, rollouts)))
    callers.live.advance()
    failing_once(monkeypatch, "step")
    callers.finish()
    [widened] = drawn
    assert not widened.gate.open and widened.gate.reason == "no samples could be drawn"
    assert len(callers.engine.learn([widened])[0].records) == 1


def test_a_text_that_cannot_be_used_costs_its_request_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    callers = Callers(tmp_path)
    callers.ask(number=1)
    failing_once(monkeypatch, "_rollouts", LiveAnswers)
    callers.finish()
    callers.ask("red", number=2)
    assert callers.finish() == [2] and set(callers.failed) == {1}


def test_rows_that_were_not_recorded_are_asked_again_after_a_restart(tmp_path: Path) -> None:
    """Rows 1 to 3 are recorded. The vote of row 4 is drawn, row 5 is written and row 6 waits to be learnt from."""
    callers = Callers(tmp_path)
    source = RequestSource([conversation(f"it is {i}") for i in range(8)])
    source.skip(3)
    taken = source.take(3, 0.0)
    assert [r.place for r in taken] == [4, 5, 6]
    numbered = [replace(request, number=7 + i) for i, request in enumerate(taken)]
    assert callers.live.begin(numbered[0])
    callers.finish()
    callers.live.draw(callers.answers[0], 5, lambda _: None)
    assert callers.live.begin(numbered[1])
    learnt = SimpleNamespace(request=numbered[2])
    serving = SimpleNamespace(
        **{name: Mock() for name in ("_failures", "_feedback", "enqueuer", "follower", "queue", "keeper", "writer")},
        live=callers.live,
        source=source,
        answered=9,
        last=None,
        _to_learn=deque([learnt]),
        _open_turns=OpenTurns(),
    )
    serving.follower.version = serving.enqueuer.lost = serving.enqueuer.dropped = 0
    serving.queue.depth.return_value = 0
    Serving._keep_learned(cast(Serving, serving), [], 1, 0.1)
    serving.enqueuer.put.assert_called_once_with(None, request=6, row=3)


def test_a_request_of_a_pipe_that_fails_is_answered_with_its_error() -> None:
    lines: list[Any] = []
    serving = SimpleNamespace(keeper=Mock(), print_line=lines.append)
    request = replace(conversation(number=4), fields={"id": "a"})
    Serving._fail(cast(Serving, serving), request, NotWritten("no memory"))
    assert lines == [{"id": "a", "error": "no memory", "request": 4}]


def test_reward_functions_that_fail_for_every_request_are_reported() -> None:
    made, event = engine(answer=r"\w", samples=2), Mock()
    made.judge = Mock(side_effect=RewardFunctionError("no network"))
    learned = made.learn(made.answer([conversation(number=n) for n in range(1, 6)], 0))
    FailureWatch(event).look(item.answer for item in learned)
    reason = "Nothing is learned from the last 5 requests: the reward functions failed: no network"
    assert event.call_args.args == ("alert", reason)


def test_callers_are_answered_while_a_reward_function_runs(tmp_path: Path) -> None:
    """In the running batch and in a batch of their own. The function stays on the main thread, which has signals."""
    made, source = engine(samples=2, max_requests=3), RequestSource(open_ended=True)
    keeper = Mock(queue=Mock(get=lambda key, default=None: default, depth=lambda: 0), writer=Mock(run_dir=tmp_path))
    keeper.copy_journal.return_value, keeper.settled.return_value = 0, None
    serving = Serving(
        engine=made,
        source=source,
        follower=WeightFollower(made.model, SnapshotReader(tmp_path), poll_s=1.0, on_problem=pytest.fail),
        keeper=keeper,
        enqueuer=Mock(lost=0, dropped=0),
        control=Mock(poll=list),
    )
    answered: queue.Queue[object] = queue.Queue()
    beside: list[Any] = []

    def judge(samples: Any, rows: Any, number: int) -> Any:
        assert threading.current_thread() is threading.main_thread()
        if not beside:
            for later in (conversation("red", max_tokens=3), *requests(1)):
                source.submit(replace(later, number=0, reply=answered.put))
            beside.extend(answered.get(timeout=20) for _ in range(2))
        return samples

    made.judge = cast(Any, judge)
    source.submit(replace(conversation(max_tokens=3), number=0, reply=lambda _: None))
    assert serving.run()
    assert sorted(answer.request.number for answer in beside) == [2, 3]
    recorded = [item.answer.request.number for call in keeper.requests.call_args_list for item in call.args[0]]
    assert sorted(recorded) == [1, 2, 3]


def test_who_gives_feedback_when_the_run_ends_is_told() -> None:
    source, told = RequestSource(open_ended=True), []
    source.submit_feedback((Mock(), told.append))
    source.turn_away()
    assert isinstance(told[0], ServerEnds) and not source.feedback
    with pytest.raises(ServerEnds):
        source.submit_feedback((Mock(), told.append))
