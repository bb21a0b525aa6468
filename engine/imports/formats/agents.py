"""Records of agent runs: mini-swe-agent, SWE-agent, smolagents, rLLM."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ..convert import is_judge
from ..format import Documents, Origin
from ..mapped import SEVERAL, Mapped, at, mean, plain, scores, several
from ..messages import call, conversation, error_text, message, split
from ..rollout import Call, Item, Message, Rollout
from ..templates import joined
from ..tokens import tokens_of_calls
from ..values import Document, listed, mapping, number, objects, text, whole

# ------------------------------------------------------------------------------------------------------ mini-swe-agent


def _mini_messages(value: object) -> tuple[Message, ...]:
    """Read messages together with the commands and errors that mini-swe-agent keeps in `extra`."""
    found: list[Message] = []
    for data in objects(value):
        if data.get("role") == "exit":
            continue
        extra = mapping(data.get("extra"))
        messages = conversation([data])
        actions = objects(extra.get("actions"))
        if actions and messages and messages[-1].is_agent and not any(m.calls for m in messages):
            messages = (*messages[:-1], replace(messages[-1], calls=tuple(_action(a) for a in actions)))
        failed = text(extra.get("exception_info")) or (
            f"exit code {extra['returncode']}" if extra.get("returncode") not in (None, 0) else None
        )
        found += [replace(m, error=failed) if failed and not m.is_agent else m for m in messages]
    return joined(found)


def _action(action: Document) -> Call:
    arguments = {k: v for k, v in action.items() if k not in ("tool_call_id", "tool")}
    return Call(str(action.get("tool") or "bash"), arguments, str(action.get("tool_call_id") or ""))


def _mini_error(rollout: Rollout, document: Document, origin: Origin) -> Rollout:
    ends = [m for m in objects(document.get("messages")) if m.get("role") == "exit"]
    reason = text(at(ends[-1], "extra.exception_str")) if ends else None
    status = None if rollout.stop.lower() in ("submitted", "limitsexceeded", "") else rollout.stop
    return replace(rollout, error=f"{rollout.stop}: {reason}" if reason else status, answer=rollout.answer or None)


MINI_SWE_AGENT = Mapped(
    name="mini-swe-agent trajectory",
    when=lambda document: (
        str(document.get("trajectory_format") or "").startswith("mini-swe-agent")
        or ("messages" in document and isinstance(at(document, "info.model_stats"), Mapping))
    ),
    keys={
        "messages": ("messages",),
        "id": ("instance_id",),
        "env": ("info.config.environment_type",),
        "model": ("info.config.model.model_name",),
        "answer": ("info.submission",),
        "stop": ("info.exit_status",),
        "extra": ("info", "info.model_stats"),
    },
    ignored=("trajectory_format", "info.config", "info.model_stats"),
    read_prompt=_mini_messages,
    finish=_mini_error,
)

# ----------------------------------------------------------------------------------------------------------- SWE-agent


def _before_the_agent(history: object) -> tuple[Message, ...]:
    prompt, _ = split([message(m) for m in objects(history)])
    return tuple(m for m in prompt if m.text) or prompt


def _swe_steps(trajectory: object) -> tuple[Message, ...]:
    """Read the steps of a trajectory. The action of a step is a command."""
    found: list[Message] = []
    for step in objects(trajectory):
        action = text(step.get("action")) or ""
        action_call = call({"name": (action.split(maxsplit=1) or [""])[0], "arguments": {"command": action.rstrip()}})
        turn = Message(
            "assistant",
            message({"role": "assistant", "content": step.get("response")}).text,
            thought=(text(step.get("thought")) or "").strip(),
            calls=(action_call,) if action.strip() else (),
            seconds=number(step.get("execution_time")) or 0.0,
        )
        found += [turn, Message("tool", text(step.get("observation")) or "")]
    return tuple(found)


def _swe_trial(rollout: Rollout, document: Document, origin: Origin) -> Rollout:
    """Take the rollout's id from its file, because an instance may be tried several times."""
    name = origin.path.name.removesuffix(".traj")
    failed = rollout.stop.startswith("exit_") or "error" in rollout.stop.lower()
    error = rollout.stop if failed else None
    return replace(rollout, id=name, prompt_id=rollout.prompt_id or name, error=error, answer=rollout.answer or None)


SWE_AGENT = Mapped(
    name="SWE-agent trajectory",
    needs=("history", "info"),
    when=lambda document: isinstance(document.get("trajectory"), list),
    keys={
        "prompt": ("history",),
        "completion": ("trajectory",),
        "prompt_id": ("instance_id",),
        "env": ("environment",),
        "answer": ("info.submission",),
        "stop": ("info.exit_status",),
        "extra": ("info", "info.model_stats"),
    },
    ignored=("info.model_stats", "replay_config", "trajectory_format"),
    read_prompt=_before_the_agent,
    read_completion=_swe_steps,
    finish=_swe_trial,
)

# ---------------------------------------------------------------------------------------------------------- smolagents

SMOLAGENTS = Mapped(
    name="smolagents run",
    needs=("steps", "state", "timing"),
    keys={
        "messages": ("steps",),
        "answer": ("output",),
        "stop": ("state",),
        "token_count": ("token_usage.total_tokens",),
        "seconds": ("timing.duration",),
    },
)

# ---------------------------------------------------------------------------------------------------------------- rLLM


def _episode(document: Document, origin: Origin) -> Iterable[Item]:
    """Yield one rollout per trajectory. An episode that failed before its first trajectory has no turns."""
    trajectories: list[Document] = objects(document["trajectories"]) or [{}]
    episode = text(document.get("episode_id") or document.get("id")) or ""
    group, _, index = episode.rpartition(":")
    correct = document.get("is_correct")
    task = mapping(document.get("task"))
    ended = text(document.get("termination_reason")) or ""
    error = error_text(at(document, "metadata.error")) or error_text(document.get("error"))
    step = whole(document.get("training_step"))
    more = {**mapping(document.get("metadata")), **mapping(document.get("info"))}
    timing = {"timing": document["timing"]} if document.get("timing") else {}
    several_agents = len(trajectories) > 1
    names = [text(t.get("name")) or "" for t in trajectories]
    several_solvers = sum(not is_judge(name) for name in names) > 1
    for i, (name, trajectory) in enumerate(zip(names, trajectories, strict=True)):
        steps = objects(trajectory.get("steps"))
        ids = [tuple(listed(s.get(k)) for k in ("prompt_ids", "response_ids", "logprobs")) for s in steps]
        advantages = [mean(s.get("advantage")) for s in steps]
        differ = len(set(advantages)) > 1 or any(several(s.get("advantage")) for s in steps)
        versions = {v for s in steps if (v := whole(s.get("weight_version"))) is not None}
        suffix = f":{names[:i].count(name)}" if name in names[:i] else ""  # such as two solvers and a judge
        about = {**mapping(trajectory.get("metadata")), **mapping(trajectory.get("info"))}
        yield Rollout(
            *_rllm_messages(steps),
            id=f"{episode}:{name}{suffix}" if several_agents else episode,
            step=origin.step if step is None else step,
            group=f"{group}:{name}" if several_solvers and group else group,
            index=whole(index) if index.isdecimal() else None,
            prompt_id=text(document.get("task_hash")) or "",
            env=text(task.get("data_source")) or "",
            agent=name if several_agents or name not in ("agent", "default_traj_name") else "",
            split="eval" if origin.path.parent.name.startswith(("val", "eval")) else "train",
            reward=number(trajectory.get("reward")),
            advantage=advantages[0] if len(set(advantages)) == 1 else None,
            components=scores(document.get("metrics")),
            expected=text(task.get("ground_truth")) or text(task.get("answer")),
            correct=correct if isinstance(correct, bool) and ended != "error" else None,
            stop=ended,
            error=error or ("the episode ended by an error" if ended == "error" else None),
            tokens=tokens_of_calls(ids),
            policy_version=versions.pop() if len(versions) == 1 else None,
            extra=plain({**{k: v for k, v in more.items() if k != "error"}, **timing, **about}),
            task=task,
            unknown={"advantage": SEVERAL} if differ else {},
        )


def _rllm_messages(known: list[Document]) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """Read the last step's conversation if it is the whole one, else join the ends of all steps' conversations.

    Turns get the rewards of the steps if each step has one turn.
    """
    if not known:
        return (), ()
    chats = [conversation(listed(s.get("chat_completions"))) for s in known]
    if chats[-1]:
        prompt, completion = split(chats[-1])
        if sum(m.is_agent for m in completion) < len(known) and all(chats):
            prompt = split(chats[0])[0]
            completion = tuple(
                m for i, chat in enumerate(chats) for m in (chat[len(prompt) :] if i == 0 else chat[-2:])
            )
    else:
        prompt = (Message("user", text(known[0].get("observation")) or ""),)
        completion = tuple(
            Message("assistant", text(s.get("model_response")) or text(s.get("action")) or "") for s in known
        )
    if sum(m.is_agent for m in completion) == len(known):
        rewards = iter([number(s.get("reward")) for s in known])
        completion = tuple(replace(m, reward=next(rewards)) if m.is_agent else m for m in completion)
    return prompt, completion


RLLM = Documents(
    "rLLM episode",
    _episode,
    keys=("task",),
    lists=("trajectories",),
    unknown={"tokens": "token ids are not written", "reward": "the trajectory has no reward"},
)
