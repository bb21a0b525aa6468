"""Access to the library's environments, messages and rubrics. It is imported when an environment needs it."""

from __future__ import annotations

import importlib
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any

from ....configs.sections.rewards import COMPONENTS
from ...agent import ROLES, Message
from ...trajectory import ComponentScore
from ...user_code import UserCodeError, find_module, one_line


def library() -> ModuleType:
    """Import `verifiers`, untyped because it resolves names on use. Raises ValueError if it is not usable."""
    try:
        found = importlib.import_module("verifiers")
        _ = found.Environment
    except (ImportError, AttributeError) as problem:
        raise ValueError(
            f"verifiers environments need verifiers 0.2.1 to 0.3 ({one_line(problem)}); pip install "
            "'grpo-tui[verifiers]'. For a taskset of 0.4, set environment.class_path to verifiers-taskset"
        ) from problem
    return found


def plain_messages(messages: Any, where: str) -> list[Message]:
    """Convert verifiers' messages to ours. Raises ValueError for content other than text."""
    if isinstance(messages, str):
        return [Message(role="user", content=messages)]
    plain: list[Message] = []
    for raw in messages:
        message = dumped(raw)
        role, content = message.get("role"), message.get("content")
        if isinstance(content, list):
            parts = [dumped(part) for part in content]
            if any(part.get("type") != "text" for part in parts):
                kinds = ", ".join(sorted({str(p.get("type")) for p in parts} - {"text"}))
                raise ValueError(f"{where}: a message contains {kinds}; verifiers environments support only text")
            content = "\n".join(str(part.get("text", "")) for part in parts)
        if role not in ROLES:
            raise ValueError(f"{where}: a message has the role {role!r}; known are {', '.join(ROLES)}")
        converted: dict[str, object] = {"role": role, "content": content or ""}
        with suppress(KeyError):
            converted["tool_call_id"] = message["tool_call_id"]
        plain.append(converted)  # type: ignore[arg-type]
    return plain


def dumped(message: Any) -> dict[str, object]:
    """Return a message as a mapping without unset fields."""
    values = message.model_dump() if hasattr(message, "model_dump") else dict(message)
    return {key: value for key, value in values.items() if value is not None}


TOTAL = "rubric"
"""The single component of a rubric whose total is not the weighted sum of its functions."""


def rubric_weights(rubric: Any) -> dict[str, float] | None:
    """Return the weight of each function of a rubric. None if its total is not the weighted sum of functions with
    distinct names, so that it is a single component."""
    vf = library()
    weights: dict[str, float] = {}
    for part in getattr(rubric, "rubrics", None) or [rubric]:
        names = [getattr(f, "__name__", repr(f)) for f in part.funcs]
        if type(part).__name__.endswith("MonitorRubric"):
            continue
        customized = type(part).score_group is not vf.Rubric.score_group or hasattr(part, "env_map")
        if customized or len(names) != len(part.weights) or len(set(names)) < len(names) or set(names) & set(weights):
            return None
        weights |= dict(zip(names, map(float, part.weights), strict=True))
    return weights


def rubric_scores(
    weights: Mapping[str, float] | None, metrics: Mapping[str, object], reward: float
) -> tuple[tuple[ComponentScore, ...], dict[str, float]]:
    """Return the scores of a rubric's functions, and the other numbers that it measured."""
    numbers = {name: float(value) for name, value in metrics.items() if isinstance(value, (int, float))}
    if weights is None:
        return (ComponentScore(TOTAL, reward),), numbers
    scores = tuple(ComponentScore(component(n), numbers.get(n), w) for n, w in weights.items())
    return scores, {n: v for n, v in numbers.items() if n not in weights}


def component(name: str) -> str:
    """Return the component name of a function, avoiding the names of built-in components."""
    return f"{TOTAL}_{name}" if name in COMPONENTS else name


def load(id: str, args: Mapping[str, object]) -> Any:
    """Create an environment with a package's `load_environment`. Raises ValueError with a one-sentence message."""
    vf = library()
    with own_signals():
        try:
            if ".py:" in id:
                module, function = find_module(id)
                env = getattr(module, function)(**args)
            else:
                env = vf.load_environment(id, **args)
        except UserCodeError:
            raise
        except Exception as problem:
            raise ValueError(f"{id} cannot be loaded: {one_line(problem)}") from problem
    if not isinstance(env, vf.Environment):
        raise ValueError(
            f"{id} made {type(env).__name__}, not a vf.Environment; for a taskset of verifiers 0.4, set "
            "environment.class_path to verifiers-taskset"
        )
    if getattr(env, "message_type", "chat") != "chat":
        raise ValueError(f"{id} asks for plain completions (message_type {env.message_type}); only chat can be trained")
    if "CliAgentEnv" in {kind.__name__ for kind in type(env).__mro__}:
        raise ValueError(f"{id} runs its own agent in a sandbox ({type(env).__name__}), not the policy")
    return env


@contextmanager
def own_signals() -> Iterator[None]:
    """Restore the SIGINT and SIGTERM handlers, which verifiers' environments replace. A run needs its own to end."""
    if threading.current_thread() is not threading.main_thread():
        raise ValueError("an environment of verifiers sets signal handlers, so it must be created on the main thread")
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def limitations(env: Any, weights: Mapping[str, float] | None) -> Iterator[str]:
    """Yield a sentence for each part of an environment that is only partly supported."""
    vf = library()
    if weights is None:
        yield f"its rubric's total is not a sum of named functions, so it becomes one component, {TOTAL}"
    if getattr(env.rubric, "has_advantages", False):
        yield "its rubric sets advantages, which are ignored: training computes its own (training.advantages)"
    turned = getattr(type(env), "get_prompt_messages", None)
    if turned is not None and turned is not vf.MultiTurnEnv.get_prompt_messages:
        yield "it may rewrite the conversation between turns; such a rollout fails and is not trained on"
    if env.sampling_args.keys() - {"n", "extra_body"} or env.sampling_args.get("extra_body"):
        yield "its sampling arguments are ignored: training.temperature, top_p and top_k control the sampling"
