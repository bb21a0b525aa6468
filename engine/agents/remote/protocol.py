"""`POST /inference/v1/generate` of vLLM as data: requests, and checks of answers.

`/v1/completions` is not used, because it takes text and silently applies the model's `generation_config`. Here every
setting is sent, and tokens are never decoded.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ....configs.errors import GrpoTuiError

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 30.0
"""The first and the longest pause before asking a busy server without `Retry-After` again."""
LOGPROB_SLACK = 1e-3
"""Log-probs may exceed 0 by this rounding error."""


class ServerTrouble(Exception):
    """A temporary failure of a server, in a few words for people."""


class ServerBusy(ServerTrouble):
    """A server asks for a pause. retry_after_s: its length; None if unspecified."""

    def __init__(self, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s

    def pause_s(self, before: int) -> float:
        """Return the randomised pause after this many pauses in a row."""
        requested = self.retry_after_s
        pause = min(FIRST_PAUSE_S * 2.0**before, LONGEST_PAUSE_S) if requested is None else requested
        return pause * random.uniform(1.0, 1.5) + random.uniform(0.0, FIRST_PAUSE_S)


class ServerRefusal(GrpoTuiError, RuntimeError):
    """A permanent refusal: the configuration of server or client has to change."""


@dataclass(frozen=True)
class GenerateRequest:
    """A request for one turn.

    model: the adapter's name, or the base model's. token_ids: the conversation so far. seed: gives the same tokens on
    every server. stop_token_ids: end the turn and are part of it. prompt_logprobs: also return those of `token_ids`.
    """

    model: str
    token_ids: Sequence[int]
    max_tokens: int
    request_id: str
    temperature: float = 1.0
    seed: int = 0
    stop_token_ids: Sequence[int] = ()
    prompt_logprobs: bool = False

    def to_json(self) -> bytes:
        """Return the body of the request, with every setting that could have a server default."""
        sampling = {
            "n": 1,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": 1.0,
            "top_k": 0,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "seed": self.seed,
            "stop_token_ids": list(self.stop_token_ids),
            "ignore_eos": True,  # `stop_token_ids` has all stop tokens
            "logprobs": 0,  # only of the drawn token
            "detokenize": False,
        }
        if self.prompt_logprobs:
            sampling["prompt_logprobs"] = 1
        body = {
            "model": self.model,
            "request_id": self.request_id,
            "token_ids": list(self.token_ids),
            "sampling_params": sampling,
            "stream": False,
        }
        return json.dumps(body).encode()


@dataclass(frozen=True)
class GenerateAnswer:
    """A written turn: n tokens with their log-probs (nats), and whether it ended by itself.

    prompt_logprobs: of each prompt token but the first, if requested. server: the writer's address.
    """

    model: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stopped: bool
    prompt_logprobs: tuple[float, ...] = ()
    server: str = ""

    @classmethod
    def from_json(cls, body: bytes, request: GenerateRequest) -> GenerateAnswer:
        try:
            return cls._read(json.loads(body), request)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as problem:
            raise ServerTrouble(f"its answer cannot be read ({type(problem).__name__}: {str(problem)[:80]})") from None

    @classmethod
    def _read(cls, answer: Mapping[str, object], request: GenerateRequest) -> GenerateAnswer:
        name = answer["model"]
        if name != request.model:
            raise ServerTrouble(f"it answered as {str(name)[:80]!r}, but {request.model!r} was requested")
        choices = answer["choices"]
        if not isinstance(choices, list) or len(choices) != 1:
            raise ServerTrouble("its answer does not contain exactly one choice")
        choice = choices[0]
        tokens, content = choice["token_ids"], choice["logprobs"]["content"]
        if choice["finish_reason"] not in ("stop", "length"):
            raise ServerTrouble(f"it stopped with {choice['finish_reason']!r}")
        if not tokens or len(tokens) > request.max_tokens or len(tokens) != len(content):
            raise ServerTrouble(
                f"it returned {len(tokens)} tokens and {len(content)} log-probs, but 1 to {request.max_tokens} were "
                "requested"
            )
        logprobs = [_logprob(item["logprob"]) for item in content]
        if [_token(t) for t in tokens] != [_token(item["token_id"]) for item in content]:
            raise ServerTrouble("its log-probs belong to other tokens")
        stopped = choice["finish_reason"] == "stop"
        if stopped and tokens[-1] not in request.stop_token_ids:
            raise ServerTrouble(f"it ended a turn after {len(tokens)} tokens with a token that does not end one")
        if not stopped and len(tokens) != request.max_tokens:
            raise ServerTrouble(f"it stopped for length after {len(tokens)} of {request.max_tokens} tokens")
        return cls(str(name), tuple(tokens), tuple(logprobs), stopped, cls._prompt(answer, request))

    @staticmethod
    def _prompt(answer: Mapping[str, object], request: GenerateRequest) -> tuple[float, ...]:
        if not request.prompt_logprobs:
            return ()
        found = answer["prompt_logprobs"]
        if not isinstance(found, list) or len(found) != len(request.token_ids):
            raise ServerTrouble("the log-probs of its prompt belong to another prompt")
        pairs = zip(found[1:], request.token_ids[1:], strict=True)
        return tuple(_logprob(item[str(token)]["logprob"]) for item, token in pairs)


def _token(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ServerTrouble(f"{str(value)[:40]!r} is not a token")
    return value


def _logprob(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ServerTrouble(f"{str(value)[:40]!r} is not a log-prob")
    if not math.isfinite(value) or value > LOGPROB_SLACK:
        raise ServerTrouble(f"{value} is not a log-prob")
    return float(value)
