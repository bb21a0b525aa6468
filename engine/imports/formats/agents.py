"""Records of agent runs: mini-swe-agent, SWE-agent, rLLM."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ..convert import is_judge
from ..format import Origin
from ..mapped import SEVERAL, at, mean, plain, scores, several
from ..messages import call, conversation, error_text, message, split
from ..rollout import Call, Item, Message, Rollout, listed, mapping, number, text, whole
from ..templates import joined
from ..tokens import Tokens

_NO_REWARD = "the writer records no reward"
_NO_ADVANTAGE = "the writer records no advantages"


class MiniSweAgent:
    """`.traj.json` of mini-swe-agent."""

    name = "mini-swe-agent trajectory"
    unknown: Mapping[str, str] = {
        "reward": _NO_REWARD,
        "advantage": _NO_ADVANTAGE,
        "step": "no training step is written",
        "group": "no group is written: rollouts of one prompt are shown as one",
    }

    def detect(self, document: Any, origin: Origin) -> bool:
        """Return whether the document has the keys of this format."""
        return isinstance(document, Mapping) and (
            str(document.get("trajectory_format") or "").startswith("mini-swe-agent")
            or ("messages" in document and isinstance(at(document, "info.model_stats"), Mapping))
        )

    def open(self, document: Any, origin: Origin) -> Iterable[Item]:
        """Yield the rollout."""
        info = mapping(document.get("info"))
        messages, error = [], None
        for data in listed(document.get("messages")):
            if not isinstance(data, Mapping):
                continue
            extra = mapping(data.get("extra"))
            if data.get("role") == "exit":
                error = text(extra.get("exception_str"))
                continue
            said = conversation([data])
            actions = [a for a in listed(extra.get("actions")) if isinstance(a, Mapping)]
            if actions and said and said[-1].is_agent and not any(m.calls for m in said):
                said = (*said[:-1], replace(said[-1], calls=tuple(_action(a) for a in actions)))
            failed = text(extra.get("exception_info")) or (
                f"exit code {extra['returncode']}" if extra.get("returncode") not in (None, 0) else None
            )
            messages += [replace(m, error=failed) if failed and not m.is_agent else m for m in said]
        prompt, said = split(joined(messages))
        status = text(info.get("exit_status")) or ""
        known = ("submitted", "limitsexceeded", "")
        yield Rollout(
            prompt=prompt,
            completion=said,
            id=text(document.get("instance_id")) or "",
            env=text(at(info, "config.environment_type")) or "",
            model=text(at(info, "config.model.model_name")) or "",
            answer=text(info.get("submission")) or None,
            stop=status,
            error=f"{status}: {error}" if error else status if status.lower() not in known else None,
            extra=plain(
                {
                    **_others(document, "info", "messages", "trajectory_format", "instance_id"),
                    **_others(info, "config", "model_stats", "mini_version", "exit_status", "submission"),
                    **mapping(info.get("model_stats")),
                    "version": info.get("mini_version"),
                }
            ),
        )


def _action(given: Mapping[str, Any]) -> Call:
    """An action of mini-swe-agent: the command of a shell, with the id of its call where there is one."""
    arguments = {k: v for k, v in given.items() if k not in ("tool_call_id", "tool")}
    return Call(str(given.get("tool") or "bash"), arguments, str(given.get("tool_call_id") or ""))


class SweAgent:
    """`.traj` of SWE-agent."""

    name = "SWE-agent trajectory"
    unknown = MiniSweAgent.unknown

    def detect(self, document: Any, origin: Origin) -> bool:
        """Return whether the document has the keys of this format."""
        steps = document.get("trajectory") if isinstance(document, Mapping) else None
        return isinstance(steps, list) and "history" in document and "info" in document

    def open(self, document: Any, origin: Origin) -> Iterable[Item]:
        """One rollout. A turn's action is a command; the prompt is what stands before the first action."""
        info = mapping(document.get("info"))
        prompt, _ = split([message(m) for m in listed(document.get("history")) if isinstance(m, Mapping)])
        said: list[Message] = []
        for step in listed(document.get("trajectory")):
            if not isinstance(step, Mapping):
                continue
            action = text(step.get("action")) or ""
            calls = (call({"name": (action.split(maxsplit=1) or [""])[0], "arguments": {"command": action.rstrip()}}),)
            said.append(
                Message(
                    "assistant",
                    message({"role": "assistant", "content": step.get("response")}).text,
                    thought=(text(step.get("thought")) or "").strip(),
                    calls=calls if action.strip() else (),
                    seconds=number(step.get("execution_time")) or 0.0,
                )
            )
            said.append(Message("tool", text(step.get("observation")) or ""))
        status = text(info.get("exit_status")) or ""
        failed = status.startswith("exit_") or "error" in status.lower()
        name = origin.path.name.removesuffix(".traj")
        yield Rollout(
            prompt=tuple(m for m in prompt if m.text) or prompt,
            completion=tuple(said),
            id=name,
            prompt_id=text(document.get("instance_id")) or name,
            env=text(document.get("environment")) or "",
            answer=text(info.get("submission")) or None,
            stop=status,
            error=status if failed else None,
            extra=plain(
                {
                    **_others(info, "model_stats", "exit_status", "submission"),
                    **mapping(info.get("model_stats")),
                }
            ),
        )


class Rllm:
    """Episodes of rLLM: one rollout for each trajectory, one trajectory an agent."""

    name = "rLLM episode"
    unknown: Mapping[str, str] = {
        "advantage": _NO_ADVANTAGE,
        "weight": "the weights of an episode's metrics are not written",
        "tokens": "token ids are not written",
        "reward": "the trajectory has no reward",
    }
    _UNNAMED = ("agent", "default_traj_name")

    def detect(self, document: Any, origin: Origin) -> bool:
        """Return whether the document has the keys of this format."""
        return isinstance(document, Mapping) and isinstance(document.get("trajectories"), list) and "task" in document

    def open(self, document: Any, origin: Origin) -> Iterable[Item]:
        """One rollout a trajectory; an episode that ended before there was one is a rollout without turns."""
        trajectories: list[Mapping[str, Any]] = [t for t in document["trajectories"] if isinstance(t, Mapping)] or [{}]
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
            steps = [s for s in listed(trajectory.get("steps")) if isinstance(s, Mapping)]
            prompt, said = _rllm_messages(steps)
            ids = [tuple(listed(s.get(k)) for k in ("prompt_ids", "response_ids", "logprobs")) for s in steps]
            given = [mean(s.get("advantage")) for s in steps]
            differ = len(set(given)) > 1 or any(several(s.get("advantage")) for s in steps)
            versions = {v for s in steps if (v := whole(s.get("weight_version"))) is not None}
            again = f":{names[:i].count(name)}" if name in names[:i] else ""  # two solvers, say, and a judge
            about = {**mapping(trajectory.get("metadata")), **mapping(trajectory.get("info"))}
            yield Rollout(
                prompt=prompt,
                completion=said,
                id=f"{episode}:{name}{again}" if several_agents else episode,
                step=origin.step if step is None else step,
                group=f"{group}:{name}" if several_solvers and group else group,
                index=whole(index) if index.isdecimal() else None,
                prompt_id=text(document.get("task_hash")) or "",
                env=text(task.get("data_source")) or "",
                agent=name if several_agents or name not in self._UNNAMED else "",
                split="eval" if origin.path.parent.name.startswith(("val", "eval")) else "train",
                reward=number(trajectory.get("reward")),
                advantage=given[0] if len(set(given)) == 1 else None,
                components=scores(document.get("metrics")),
                expected=text(task.get("ground_truth")) or text(task.get("answer")),
                correct=correct if isinstance(correct, bool) and ended != "error" else None,
                stop=ended,
                error=error or ("the episode ended by an error" if ended == "error" else None),
                tokens=Tokens.of_calls(ids),
                policy_version=versions.pop() if len(versions) == 1 else None,
                extra=plain({**{k: v for k, v in more.items() if k != "error"}, **timing, **about}),
                task=task,
                unknown={"advantage": SEVERAL} if differ else {},
            )


def _others(document: Mapping[str, Any], *known: str) -> dict[str, Any]:
    """What a writer added of its own."""
    return {k: v for k, v in document.items() if k not in known}


def _rllm_messages(known: list[Mapping[str, Any]]) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """The last step's conversation is the whole one, unless each step has its own: then a turn is the end of each.
    Turns get the steps' rewards where each step has one."""
    if not known:
        return (), ()
    chats = [conversation(listed(s.get("chat_completions"))) for s in known]
    if chats[-1]:
        prompt, said = split(chats[-1])
        if sum(m.is_agent for m in said) < len(known) and all(chats):
            prompt = split(chats[0])[0]
            said = tuple(m for i, chat in enumerate(chats) for m in (chat[len(prompt) :] if i == 0 else chat[-2:]))
    else:
        prompt = (Message("user", text(known[0].get("observation")) or ""),)
        said = tuple(Message("assistant", text(s.get("model_response")) or text(s.get("action")) or "") for s in known)
    turns = [i for i, m in enumerate(said) if m.is_agent]
    if len(turns) == len(known):
        rewards = {i: number(s.get("reward")) for i, s in zip(turns, known, strict=True)}
        said = tuple(replace(m, reward=rewards[i]) if i in rewards else m for i, m in enumerate(said))
    return prompt, said
