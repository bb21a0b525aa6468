"""Make an environment of `verifiers`, and report the parts that cannot be mapped."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ...user_code import UserCodeError, find_module, one_line
from .library import library
from .rubric import TOTAL, RubricParts


def load(id: str, args: dict[str, Any]) -> Any:
    """Make the environment of a package's `load_environment`. Raises ValueError in one sentence."""
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
            f"{id} made {type(env).__name__}, which is no vf.Environment (tasksets of verifiers.v1 run agents of "
            "their own and cannot be trained here)"
        )
    if getattr(env, "message_type", "chat") != "chat":
        raise ValueError(f"{id} asks for plain completions (message_type {env.message_type}); only chat can be trained")
    if "CliAgentEnv" in {kind.__name__ for kind in type(env).__mro__}:
        raise ValueError(f"{id} runs an agent of its own in a sandbox ({type(env).__name__}), not the policy")
    return env


@contextmanager
def own_signals() -> Iterator[None]:
    """Restore the handlers of SIGINT and SIGTERM, which environments of verifiers replace: a run needs them to end."""
    if threading.current_thread() is not threading.main_thread():
        raise ValueError("an environment of verifiers sets signal handlers, so it can be made on the main thread only")
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def limitations(env: Any, rubric: RubricParts) -> Iterator[str]:
    """Yield a sentence for each part of an environment that is mapped only partly."""
    vf = library()
    if rubric.weights is None:
        yield f"its rubric's total is not the sum of functions with names of their own; it is one component, {TOTAL}"
    if getattr(env.rubric, "has_advantages", False):
        yield "its rubric sets advantages, which are left out: training computes its own (training.advantages)"
    turned = getattr(type(env), "get_prompt_messages", None)
    if turned is not None and turned is not vf.MultiTurnEnv.get_prompt_messages:
        yield "it may rewrite the conversation between turns; a rollout in which it does fails, and is not trained on"
    if env.sampling_args.keys() - {"n", "extra_body"} or env.sampling_args.get("extra_body"):
        yield "its sampling arguments are left out: training.temperature, top_p and top_k control the sampling"
