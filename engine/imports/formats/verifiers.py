"""verifiers (both generations of its records), and prime-rl, which writes verifiers episodes.

An episode (verifiers 0.4) holds one trace per agent. The nodes of a trace are messages with parents, so a conversation
that was cut or rewritten has branches. The rollout is the branch that ends last, and the others are counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial

from ..containers.base import TO_ITS_END
from ..convert import is_judge
from ..format import Documents, Origin, side_file
from ..mapped import Mapped, at, mean, plain, scores
from ..messages import error_text, message
from ..rollout import Amendment, Expected, Item, Message, Named, Rollout, Score
from ..tokens import tokens_of_nodes, tokens_with_more
from ..values import Document, listed, mapping, number, objects, summed, text, whole

_NO_ADVANTAGE = "advantages are not written; trainers write them per token or as annotations"
_IN_PART = "a weighted component has no score, or no component has a weight: the total is unknown"
_OVERLAYS = {
    "trainer_logprobs": "trainer",
    "entropies": "entropy",
    "entropy": "entropy",
    "ref_logprobs": "reference",
    "reference_logprobs": "reference",
}
"""Per-token numbers that prime-rl's trainer adds to a branch, with their overlay names."""


def _episodes(document: Document, origin: Origin) -> Iterable[Item]:
    effective = {"effective": True} if "effective" in origin.path.parts else {}
    traces: list[Document] = [t for t in document["traces"] if isinstance(t, Mapping)]
    if not traces and listed(document.get("errors")):  # the episode failed before its first trace
        traces = [{"id": document.get("id")}]
    several = sum(not is_judge(text(at(t, "agent.name")) or "") for t in traces) > 1
    for trace in traces:
        rollout = _trace(trace, document, origin, several=several)
        yield replace(rollout, extra={**rollout.extra, **effective})


EPISODES = Documents(
    "verifiers episodes",
    _episodes,
    keys=("env",),
    lists=("traces",),
    unknown={"advantage": _NO_ADVANTAGE, "reward": "no component has a score: the rollout was not scored"},
)
"""`traces.jsonl` of verifiers 0.4 and of prime-rl, in either layout."""
TRACES = Documents(
    "verifiers traces",
    lambda document, origin: [_trace(document, document, origin, several=False)],
    keys=("rewards",),
    lists=("nodes",),
    unknown=EPISODES.unknown,
)
"""Traces without an episode around them."""


def _annotation(document: Document, origin: Origin) -> Iterable[Item]:
    info = mapping(document.get("info"))
    branches = objects(document.get("branches"))
    advantage = number(info.get("advantage"))
    last = branches[-1] if branches else {}
    values = listed(last.get("advantages"))
    advantage = mean(values) if advantage is None else advantage
    overlays = {name: found_values for key, name in _OVERLAYS.items() if (found_values := listed(last.get(key)))}
    yield Amendment(
        id=str(document["trace_id"]),
        step=whole(at(info, "ship.step")),
        advantage=advantage,
        extra=plain({k: v for k, v in info.items() if k != "advantage"}),
        tokens=(lambda rollout: tokens_with_more(rollout.tokens, values, overlays)) if values or overlays else None,
    )


ANNOTATIONS = Documents("prime-rl annotations", _annotation, keys=("trace_id", "branches"))
"""Values that prime-rl's orchestrator and trainer add to a trace."""


def _stream_index(document: Document, origin: Origin) -> Iterable[Item]:
    """Yield the ids of an entry, and the rollout that the entry describes if it has one trace and a group."""
    ids = tuple(id_ for id_ in listed(document.get("trace_ids")) if isinstance(id_, str))
    if ids:
        yield Named(ids)
    chunk, offset, group = whole(document["chunk"]), whole(document["offset"]), text(document.get("group"))
    if len(ids) == 1 and chunk is not None and offset is not None and group:
        kind, failed = text(document.get("kind")) or "", whole(document.get("num_errors")) or 0
        rollout = Rollout(
            id=ids[0],
            group=group,
            env=text(document.get("env")) or "",
            split=kind if kind in ("train", "eval") else origin.split,
            reward=number(document.get("reward")) if document.get("ok") is True and not failed else None,  # else 0
            advantage=number(document.get("advantage")),
            stop=text(document.get("stop_condition")) or "",
            error=f"{failed} error{'s' * (failed > 1)}" if failed else None,
            token_count=summed([document.get("input_tokens"), document.get("output_tokens")]),
        )
        path = origin.path.parent / "stream" / f"{chunk:05}.jsonl"
        yield Expected(rollout, offset, TO_ITS_END, path, EPISODES.name)


STREAM_INDEX = Documents(
    "prime-rl index",
    _stream_index,
    keys=("chunk", "offset"),
    when=lambda document, _: "trace_ids" in document or "trace_id" in document,
)
"""prime-rl's own indexes. The index of the stream is read before the stream."""


def _of_results(rollout: Rollout, document: Document, origin: Origin) -> Rollout:
    """Add the run description from `metadata.json`. Counts and times become columns, other metrics components."""
    about = side_file(origin.path.parent / "metadata.json")
    usage = mapping(document.get("token_usage"))
    values = {name: score.value for name, score in rollout.components.items()}
    counted = [k for k in values if k.startswith("num_") or k.endswith(("_calls", "_ms"))]
    where = origin.path.parent.name if origin.step is None else origin.step
    return replace(
        rollout,
        completion=rollout.completion if document.get("completion") else (),
        group=f"{where}:{rollout.prompt_id}",
        env=text(about.get("env_id")) or rollout.env,
        model=text(about.get("model")) or "",
        split=text(document.get("split")) or ("eval" if about else "train"),
        components={k: s for k, s in rollout.components.items() if k not in counted},
        expected=rollout.expected or None,
        stop=rollout.stop or ("truncated" if document.get("is_truncated") else ""),
        token_count=summed([usage.get(k) for k in ("final_input_tokens", "final_output_tokens")]),
        extra={**rollout.extra, **plain({k: values[k] for k in counted})},
        seconds=rollout.seconds or (number(at(document, "timing.total_ms", document.get("total_ms"))) or 0.0) / 1000,
        tools=rollout.tools or tuple(objects(about.get("tools"))),
    )


RESULTS = Mapped(
    name="verifiers results",
    needs=("example_id", "completion"),
    keys={
        "id": ("trajectory_id",),
        "prompt_id": ("example_id",),
        "step": ("info.step",),
        "prompt": ("prompt",),
        "completion": ("completion",),
        "reward": ("reward",),
        "advantage": ("advantage",),
        "components": ("metrics",),
        "expected": ("answer",),
        "error": ("error",),
        "env": ("task",),
        "stop": ("stop_condition",),
        "seconds": ("timing.total",),
        "tools": ("tool_defs", "tools"),
        "extra": ("info",),
    },
    numbers="component",
    ignored=("id", "is_completed", "is_truncated", "split", "token_usage", "trajectory"),
    finish=_of_results,
    unknown={
        "advantage": _NO_ADVANTAGE,
        "weight": "the weights of reward functions are not written",
        "components": "metrics are written, but not which of them are reward functions",
        "tokens": "token ids are not written",
    },
)
"""`results.jsonl` of verifiers up to 0.3."""


def _trace(trace: Document, episode: Document, origin: Origin, several: bool) -> Rollout:
    nodes = objects(trace.get("nodes"))
    chain, branches = _branch(nodes)
    calls = {whole(c.get("node")): c for c in listed(trace.get("calls")) if isinstance(c, Mapping)}
    messages = [_message(nodes[i], calls.get(i)) for i in chain]
    sampled = [bool(nodes[i].get("sampled")) or m.is_agent for i, m in zip(chain, messages, strict=True)]
    first = sampled.index(True) if True in sampled else len(messages)
    rewards = mapping(trace.get("rewards"))
    components = {**dict.fromkeys(rewards, Score(None)), **scores(rewards)}
    task = mapping(trace.get("task")) or mapping(episode.get("task"))
    data = mapping(task.get("data"))
    kept = [nodes[i] for i in chain]
    tokens = partial(tokens_of_nodes, kept) if any(node.get("token_ids") for node in kept) else None
    agent = text(at(trace, "agent.name")) or ""
    work = mapping(at(episode, "run.work"))
    step = whole(work.get("step"))
    kind = text(work.get("type")) or text(at(episode, "run.type")) or ""
    group = text(at(episode, "group.id")) or ""
    name = text(data.get("name")) or text(task.get("key")) or ""
    reward = _total(components, trace)
    scored = any(s.value is not None for s in components.values())
    errors = listed(trace.get("errors")) or listed(episode.get("errors"))
    return Rollout(
        prompt=tuple(messages[:first]),
        completion=tuple(messages[first:]),
        id=text(trace.get("id")) or "",
        same_as_id=bool(trace.get("id")),
        step=origin.step if step is None else step,
        group=f"{group}:{agent}" if group and several else group,
        prompt_id=name,
        env=text(at(episode, "env.name")) or text(at(episode, "env.id")) or "",
        agent=agent if several or agent not in ("", "agent") else "",
        model=text(at(trace, "agent.config.model")) or "",
        split=kind if kind in ("train", "eval") else origin.split,
        reward=reward,
        components=components,
        advantage=mean([v for node in kept for v in listed(node.get("advantages"))]),
        expected=text(data.get("answer")),
        stop=text(trace.get("stop_condition")) or "",
        error=error_text(errors),
        token_count=whole(trace.get("num_total_tokens")),
        tokens=tokens,
        policy_version=whole(at(work, "policy.start")),
        extra={
            **plain(mapping(trace.get("metrics"))),
            **plain(mapping(trace.get("info"))),
            **({"branches": branches} if branches > 1 else {}),
        },
        task=data,
        tools=tuple(objects(trace.get("tools"))),
        seconds=_elapsed(at(trace, "timing.start"), at(trace, "timing.agent.end")),
        unknown={"reward": _IN_PART} if reward is None and scored else {},
    )


def _branch(nodes: list[Document]) -> tuple[list[int], int]:
    """Return the nodes from the root to the last node, and the number of leaves."""
    parents = [whole(n.get("parent")) for n in nodes]
    chain: dict[int, None] = {}
    node: int | None = len(nodes) - 1
    while node is not None and 0 <= node < len(nodes) and node not in chain:
        chain[node] = None
        node = parents[node]
    return list(chain)[::-1], len(set(range(len(nodes))).difference(parents))


def _message(node: Document, call: Document | None) -> Message:
    read = message(mapping(node.get("message")))
    time = mapping(call.get("time")) if call else {}
    return replace(
        read,
        advantage=mean(node.get("advantages")),
        stop=text(call.get("finish_reason")) or "" if call else "",
        seconds=_elapsed(time.get("start"), time.get("end")),
    )


def _total(components: Mapping[str, Score], trace: Document) -> float | None:
    """Return Σ score × weight, the reward as verifiers defines it, or None if a part is unknown."""
    reward = number(trace.get("reward"))
    parts = [(s.value, s.weight) for s in components.values() if s.weight is not None]
    if reward is not None or not parts or any(value is None for value, _ in parts):
        return reward
    return sum((value or 0.0) * weight for value, weight in parts)


def _elapsed(start: object, end: object) -> float:
    started, ended = number(start), number(end)
    return max(0.0, ended - started) if started is not None and ended is not None else 0.0
