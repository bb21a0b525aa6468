"""Who asks over HTTP as OpenAI's clients do, or by our own routes, is answered."""

from __future__ import annotations

import base64
import errno
import io
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import httpx
import openai
import pytest
from PIL import Image

from grpo_tui.configs.sections import EnvironmentConfig
from grpo_tui.engine.online.serve.http import conversation

from .world import ASK, QUESTION, OwnEnv, PicturesOnly, World, picture_url

# --------------------------------------------------------------------------------------------- OpenAI's own client


def test_the_official_client_gets_a_completion(world: World) -> None:
    answer = world.client().chat.completions.create(
        model="tiny",
        messages=[{"role": "system", "content": "Be brief."}, *QUESTION],
        temperature=0.2,
        max_tokens=12,
        user="me",
    )
    assert answer.choices[0].message.content == "red" and answer.choices[0].finish_reason == "stop"
    assert answer.model == "tiny" and answer.usage is not None and answer.id.startswith("chatcmpl-")
    assert answer.model_extra is not None
    assert answer.model_extra["grpo_tui"]["confidence"] == pytest.approx(2 / 3, abs=1e-4)
    reached = world.reached[-1]
    assert reached.row.env_class_path == "a.b.C"
    assert reached.row.task_data == {"question": "What colour is it?", "system_prompt": "Be brief."}
    assert (reached.sampling.temperature, reached.sampling.max_tokens) == (0.2, 12)
    assert reached.version is None


def test_the_official_client_streams(world: World) -> None:
    world.text = "red " * 40
    try:
        chunks = list(
            world.client().chat.completions.create(
                model="tiny", messages=QUESTION, stream=True, stream_options={"include_usage": True}
            )
        )
    finally:
        world.text = "red"
    pieces = [c.choices[0].delta.content or "" for c in chunks if c.choices]
    assert "".join(pieces) == ("red " * 40).strip() and len(pieces) > 4
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].usage is not None and chunks[-1].choices == []


def test_a_proxy_is_told_to_pass_pieces_on_as_they_come(world: World) -> None:
    headers = world.post({**ASK, "stream": True}).headers
    assert (headers["x-accel-buffering"], headers["cache-control"]) == ("no", "no-cache")


def test_the_official_client_uses_responses(world: World) -> None:
    answer = world.client().responses.create(model="tiny", input="What colour?", instructions="Be brief.")
    assert answer.output_text == "red" and answer.status == "completed"
    assert world.reached[-1].row.task_data == {"question": "What colour?", "system_prompt": "Be brief."}
    with world.client().responses.stream(model="tiny", input="What colour?") as stream:
        kinds = [event.type for event in stream]
        assert stream.get_final_response().output_text == "red"
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed"


@pytest.mark.parametrize("whole", [True, False])
def test_the_output_of_a_response_may_be_sent_back(world: World, whole: bool) -> None:
    first = world.client().responses.create(model="tiny", input="What colour?")
    said: list[Any] = list(first.output)
    said = said if whole else [{"role": item.role, "content": item.content} for item in said]
    history: list[Any] = [*QUESTION, *said, {"role": "user", "content": "Sure?"}]
    assert world.client().responses.create(model="tiny", input=history).output_text == "red"
    talk = [(m["role"], m["content"]) for m in world.reached[-1].row.task_data["messages"]]
    assert talk[1:] == [("assistant", "red"), ("user", "Sure?")]


def test_instructions_take_the_place_of_those_of_the_response_before(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = [("system", "Be brief."), ("user", "Hello."), ("assistant", "Hi.")]
    before = SimpleNamespace(messages=[{"role": role, "content": text} for role, text in talk])
    monkeypatch.setattr(world.backend, "turn", lambda *_: before, raising=False)
    for given in ("Be brief.", "Be long."):
        world.client().responses.create(model="tiny", input="Why?", instructions=given, previous_response_id="resp_1")
        reached = [m["content"] for m in world.reached[-1].row.task_data["messages"]]
        assert reached == [given, "Hello.", "Hi.", "Why?"]


def test_models_and_versions(world: World) -> None:
    client = world.client()
    assert [m.id for m in client.models.list()] == ["tiny", "tiny@0", "tiny@3", "tiny@7"]
    assert client.models.retrieve("tiny@3").id == "tiny@3"
    answer = client.chat.completions.create(model="tiny@3", messages=QUESTION)
    assert answer.model == "tiny@3" and world.reached[-1].version == 3
    before = len(world.reached)
    for name in ("gpt-4o", "tiny@5", "tiny@", "tiny@x", "tiny@" + "9" * 5000):
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            client.chat.completions.create(model=name, messages=QUESTION)
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4o")
    assert len(world.reached) == before


def test_errors_reach_the_official_client_as_its_own(guarded: World) -> None:
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{guarded.server.url}/v1", api_key="wrong", max_retries=0).models.list()
    client = guarded.client()
    assert client.models.list().data
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="tiny", messages=QUESTION, n=3)
    assert caught.value.param == "n" and "n is not supported" in str(caught.value)


# --------------------------------------------------------------------------------------- conversations and pictures


def test_a_conversation_is_held_as_it_is(world: World) -> None:
    turns = [*QUESTION, {"role": "assistant", "content": "red"}, {"role": "user", "content": "Sure?"}]
    assert world.post({"messages": turns}).status_code == 200
    row = world.reached[-1].row
    assert row.env_class_path == "grpo_tui.envs.chat.ChatEnv" and row.task_data == {"messages": turns}


def test_a_question_in_words_is_answered_where_the_environment_needs_a_picture(tmp_path: Path) -> None:
    made = World(tmp_path)
    made.backend.env_class = PicturesOnly
    assert made.post(ASK).status_code == 200
    assert made.reached[-1].row.env_class_path == "grpo_tui.envs.chat.ChatEnv"
    parts = [{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {"url": picture_url()}}]
    assert made.post({"messages": [{"role": "user", "content": parts}]}).status_code == 200
    assert made.reached[-1].row.env_class_path == "a.b.C"
    made.close()


def test_a_picture_that_cannot_be_read_costs_its_request_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a program was started"))
    huge = io.BytesIO()
    Image.new("1", (8_000, 6_000)).save(huge, "PNG")
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n"
    for content, why in ((eps, "it is not a PNG, JPEG, WebP or GIF image"), (huge.getvalue(), "8,000 x 6,000 pixels")):
        url = "data:image/png;base64," + base64.b64encode(content).decode()
        asked = [{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {"url": url}}]
        block = {"messages": [{"role": "user", "content": [{"type": "image", "image": url}]}]}
        for body in ({"messages": [{"role": "user", "content": asked}]}, {"task_data": block}):
            answer = world.post(body)
            assert answer.status_code == 400, answer.text
            assert why in answer.json()["error"]["message"] and "0x" not in answer.text
    assert world.post(ASK).status_code == 200


def test_a_picture_becomes_a_file_and_nothing_else_is_fetched(world: World) -> None:
    url = picture_url()
    parts: list[Any] = [{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {"url": url}}]
    assert world.post({"messages": [{"role": "user", "content": parts}]}).status_code == 200
    task = world.reached[-1].row.task_data
    assert task["question"] == "What?"
    with Image.open(task["image"]) as picture:
        assert picture.size == (8, 6)
    asked = [{"type": "input_text", "text": "What?"}, {"type": "input_image", "image_url": url, "detail": "auto"}]
    world.client().responses.create(model="tiny", input=[{"role": "user", "content": asked}])  # type: ignore[list-item]
    assert world.reached[-1].row.task_data["image"] == task["image"]
    before = len(world.reached)
    several = world.post({"messages": [{"role": "user", "content": [*parts, parts[1]]}]})
    assert several.status_code == 400 and "the policy reads no images" in several.text  # none of them is left out
    for bad in ("file:///etc/passwd", "/etc/passwd", "http://127.0.0.1/x.png", "data:image/png;base64,@@", url[:-30]):
        parts[1]["image_url"] = {"url": bad}
        refused = world.post({"messages": [{"role": "user", "content": parts}]})
        assert refused.status_code == 400, bad
    assert len(world.reached) == before


def test_a_picture_that_the_disk_has_no_room_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        conversation, "replace_file", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    )
    image = Image.new("RGB", (3, 5), (1, 2, 3))
    data = io.BytesIO()
    image.save(data, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(data.getvalue()).decode()}"
    parts = [{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {"url": url}}]
    refused = world.post({"messages": [{"role": "user", "content": parts}]})
    assert refused.status_code == 507 and "the image cannot be saved: No space left" in refused.text


def test_a_task_names_no_file_but_shared_ones_and_learns_nothing_of_the_disk(world: World, tmp_path: Path) -> None:
    shared = world.uploads.shared[0]
    shared.mkdir(exist_ok=True)
    Image.new("RGB", (2, 2)).save(shared / "a.png")
    private = tmp_path / "private.png"
    Image.new("RGB", (2, 2)).save(private)
    (shared / "link.png").symlink_to(private)
    for path, key in (("/v1/requests", "task_data"), ("/v1/chat/completions", "task_data")):
        assert world.post({key: {"image": str(shared / "a.png")}}, path=path).status_code == 200
        before = len(world.reached)
        answers = set()
        for name in (private, tmp_path / "missing.png", shared / "link.png", shared / ".." / ".." / "x.png", "a.png"):
            in_words = {"role": "user", "content": [{"type": "image", "image": str(name)}]}
            for task in ({"image": str(name)}, {"frames": [str(name)]}, {"messages": [in_words]}):
                refused = world.post({key: task}, path=path)
                said = refused.json()["error"]["message"].replace("messages.content.image", "image")
                answers.add((refused.status_code, said.replace("frames", "image")))
        assert len(answers) == 1 and next(iter(answers))[0] == 400
        assert len(world.reached) == before


# ----------------------------------------------------------------------------------------------------- other routes


def test_rows_and_health_and_metrics(world: World) -> None:
    answer = world.post({"id": "mine", "task_data": {"a": 1}}, path="/v1/requests")
    assert answer.json() == {
        "id": "mine",
        "answer": "red",
        "confidence": pytest.approx(2 / 3, abs=1e-4),
        "trajectory_id": "",
        "request": 0,
        "policy_version": 7,
    }
    health = httpx.get(world.server.url + "/health")
    assert health.status_code == 200
    assert health.json() == {"status": "ok", "learning": "running", "policy_version": 7, "waiting": 0}
    world.backend.worker = "dead"
    dead = httpx.get(world.server.url + "/health")
    assert (dead.status_code, dead.json()["status"]) == (503, "degraded")
    world.backend.worker = "running"
    text = httpx.get(world.server.url + "/metrics").text
    assert 'grpo_tui_http_requests_total{path="/v1/requests",status="200"}' in text
    assert "grpo_tui_policy_version 7.0" in text and "grpo_tui_answer_seconds_count" in text


def test_a_persons_word(world: World) -> None:
    path = "/v1/feedback"
    answer = world.post({"id": "1", "verdict": "wrong", "answer": "blue"}, path=path)
    assert answer.json() == {"request": 1, "learned": True}
    assert world.keeper.said[-1].answer == "blue"
    assert world.post({"id": "9", "verdict": "right"}, path=path).status_code == 404
    assert world.post({"id": "1"}, path=path).status_code == 400
    assert world.post({"id": "1", "verdict": "maybe"}, path=path).status_code == 400
    own = world.post(ASK).json()["id"]
    for identifier, status in ((own, 404), (f"{own}x", 404), ("chatcmpl-1-0a", 404), (own.replace("-0-", "-1-"), 200)):
        assert world.post({"id": identifier, "verdict": "right"}, path=path).status_code == status


class OddEnv(OwnEnv):
    """Does to a question what it says."""

    release = threading.Event()

    @classmethod
    def task_of_question(cls, question: str, images: Any) -> Any:
        if question == "hang":
            cls.release.wait(20)
        if question == "exit":
            raise SystemExit(3)
        return {"list": [question], "half": {"question": "half \ud83d"}}.get(question)


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        ("hang", "took longer than 0.2 s"),
        ("exit", "SystemExit: 3"),
        ("list", "task_of_question returned a list, not a task"),
    ],
)
def test_an_environment_that_makes_no_task_of_a_question_costs_that_request(
    world: World, monkeypatch: pytest.MonkeyPatch, question: str, reason: str
) -> None:
    monkeypatch.setattr(world.backend, "env_class", OddEnv)
    monkeypatch.setattr(world.backend, "environment", EnvironmentConfig(class_path="a.b.C", turn_timeout_s=0.2))
    asked = world.post({"messages": [{"role": "user", "content": question}]})
    OddEnv.release.set()
    assert asked.status_code == 422 and reason in asked.json()["error"]["message"]


def test_a_task_with_half_a_character_is_mended(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world.backend, "env_class", OddEnv)
    assert world.post({"messages": [{"role": "user", "content": "half"}]}).status_code == 200
    assert world.reached[-1].row.task_data == {"question": "half ?"}


def test_a_task_that_cannot_begin(tmp_path: Path) -> None:
    made = World(tmp_path)
    made.error = "reset: task_data needs a question"
    answer = made.post(ASK)
    assert answer.status_code == 422 and "needs a question" in answer.text
    made.close()
