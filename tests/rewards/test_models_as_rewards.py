"""Models as reward functions: a classifier, read as TRL reads it, and a judge behind an OpenAI-compatible server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from grpo_tui.configs.sections import EnvironmentConfig
from grpo_tui.rewards.functions import Completions, RewardFunctionError, RewardFunctions, load_function

PROMPTS = [[{"role": "user", "content": "2 + 2?"}], [{"role": "user", "content": "3 + 3?"}]]
ANSWERS = [[{"role": "assistant", "content": "4"}], [{"role": "assistant", "content": "7"}]]
ASKED = Completions(PROMPTS, ANSWERS, [[1], [2]], {"answer": ["4", "6"]}, ["row 1", "row 2"])  # type: ignore[arg-type]

JUDGE = """
from grpo_tui.rewards.llm_judge import LLMJudge

url = "http://127.0.0.1:{port}/v1"
right = LLMJudge(url, "judge", "The answer is right.", reference="answer", api_key="k", tries=2)
"""


class Server(BaseHTTPRequestHandler):
    asked: ClassVar[list[dict[str, Any]]] = []
    refusals: ClassVar[int] = 1

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if Server.refusals:
            Server.refusals -= 1
            self.send_response(429)
            self.send_header("Retry-After", "0")
            self.end_headers()
            return
        Server.asked.append({**body, "key": self.headers["Authorization"], "path": self.path})
        question = body["messages"][0]["content"]
        said = "Hm." if "7" in question else 'So.\\n{"why": "it is 4", "score": 0.75}'
        reply = json.dumps({"choices": [{"message": {"content": said.replace("\\\\n", "\\n")}}]}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    Server.asked, Server.refusals = [], 1
    server = HTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


def test_a_judge_scores_by_its_criterion_and_tries_again(tmp_path: Path, port: int):
    (tmp_path / "mine.py").write_text(JUDGE.replace("{port}", str(port)))
    scores = RewardFunctions.load({f"{tmp_path / 'mine.py'}:right": 1.0}).score(ASKED)
    assert [(s.name, s.value, s.why) for (s,) in scores.by_row] == [("right", 0.75, "it is 4"), ("right", None, "")]
    asked = next(a for a in Server.asked if "[user] 2 + 2?" in a["messages"][0]["content"])
    assert "Reference answer: 4" in asked["messages"][0]["content"]
    assert (asked["model"], asked["key"], asked["path"]) == ("judge", "Bearer k", "/v1/chat/completions")


def test_a_judge_that_does_not_answer_ends_the_run_in_one_sentence(tmp_path: Path, port: int):
    Server.refusals = 100
    (tmp_path / "mine.py").write_text(JUDGE.replace("{port}", str(port)))
    with pytest.raises(RewardFunctionError, match="did not answer: HTTP Error 429"):
        RewardFunctions.load({f"{tmp_path / 'mine.py'}:right": 1.0}).score(ASKED)


def test_a_folder_without_a_classifier_is_refused_before_anything_is_loaded(tmp_path: Path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(RewardFunctionError, match="is not a reward model"):
        load_function(str(tmp_path / "empty"))
    (tmp_path / "base").mkdir()
    config = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}
    (tmp_path / "base" / "config.json").write_text(json.dumps(config))
    with pytest.raises(RewardFunctionError, match="is a Qwen3ForCausalLM, not a sequence classifier"):
        load_function(str(tmp_path / "base"))


def test_a_classifier_with_several_labels_is_refused_before_anything_is_loaded(tmp_path: Path):
    stated = {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "bad", "1": "good"}}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", **stated}))
    with pytest.raises(RewardFunctionError, match="is a classifier with 2 labels, but a reward model has one"):
        load_function(str(tmp_path))


def test_a_model_is_named_by_its_folder_and_functions_as_before():
    named = EnvironmentConfig(reward_funcs=["org/Reward-V2-0.6B:0.5", "rewards/mine.py:good", "./clf"])  # type: ignore[arg-type]
    assert named.reward_funcs == {"org/Reward-V2-0.6B": 0.5, "rewards/mine.py:good": 1.0, "./clf": 1.0}
    for wrong in ("accuracy", "rewards/mine.py", "mine.py:"):
        with pytest.raises(ValueError, match=r"names no function|is a file|is not a number"):
            EnvironmentConfig(reward_funcs=[wrong])  # type: ignore[arg-type]
