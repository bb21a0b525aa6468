"""Trainers whose documents need their own code: ART, NeMo-RL, trackio."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ..containers.sqlite import is_empty, runs_of
from ..convert import identity
from ..format import Documents, Origin
from ..mapped import SEVERAL, Mapped, mean, plain, several
from ..messages import conversation, error_text, split
from ..rollout import Item, Message, Numbers, Rollout, Score
from ..templates import flat
from ..tokens import token_arrays
from ..values import Document, listed, mapping, number, objects, text, whole
from .generic import table_rows
from .tables import GENERIC
from .trl import trl

# ----------------------------------------------------------------------------------------------------------------- ART

_ART_KEYS = (
    *("messages_and_choices", "messages", "additional_histories", "tools", "reward", "metrics", "metadata"),
    *("exception", "group_index", "group_json", "group_metadata", "trajectory_index", "trajectory_json"),
)


def _is_art_group(document: Document) -> bool:
    trajectories = document.get("trajectories")
    return isinstance(trajectories, list) and (
        "exceptions" in document or any(isinstance(t, Mapping) and "messages_and_choices" in t for t in trajectories)
    )


def _art(document: Document, origin: Origin) -> Iterable[Item]:
    """Yield one rollout per parquet row, or per trajectory of a group (JSON lines of older versions)."""
    if not _is_art_group(document):
        yield _art_rollout(document, origin)
        return
    group = {k: v for k, v in document.items() if k != "trajectories"}
    trajectories = objects(document["trajectories"])
    rollouts = [_art_rollout({**trajectory, "group_json": group}, origin) for trajectory in trajectories]
    default_group = identity(rollouts[0])[1] if rollouts else ""
    yield from (replace(rollout, group=rollout.group or default_group) for rollout in rollouts)


def _art_rollout(document: Document, origin: Origin) -> Rollout:
    trajectory = mapping(document.get("trajectory_json")) or document
    group = mapping(document.get("group_json"))
    about_group = {**mapping(document.get("group_metadata")), **mapping(group.get("metadata"))}
    failed = len(listed(group.get("exceptions")))
    number_ = origin.path.stem
    step = whole(about_group.get("step"))
    step = step if step is not None else whole(number_) if number_.isdecimal() else origin.step
    entries = listed(trajectory.get("messages_and_choices")) or listed(trajectory.get("messages"))
    prompt, completion = split(conversation(entries))
    metrics, about = mapping(trajectory.get("metrics")), mapping(trajectory.get("metadata"))
    position = text(document.get("group_index"))
    split_name = origin.path.parent.name
    others = listed(trajectory.get("additional_histories"))
    first, last = (whole(trajectory.get(f"{k}_policy_version")) for k in ("initial", "final"))
    return Rollout(
        prompt=prompt,
        completion=completion,
        step=step,
        group=text(about_group.get("group")) or (f"{split_name}:{step}:{position}" if position else ""),
        index=whole(document.get("trajectory_index")),
        prompt_id=text(about.get("prompt_id")) or "",
        split="eval" if split_name in ("val", "eval", "test") else "train",
        reward=number(trajectory.get("reward", document.get("reward"))),
        components={k: Score(number(v)) for k, v in metrics.items() if not isinstance(v, bool)},
        answer=text(about.get("answer")),
        expected=text(about.get("expected")),
        stop=next((m.stop for m in reversed(completion) if m.stop), ""),
        error=error_text(trajectory.get("exception")) or error_text(metrics.get("error")) or _errors(document),
        policy_version=first if first == last else None,
        extra={
            **plain({k: v for k, v in trajectory.items() if k not in _ART_KEYS}),
            **plain({f"group.{k}": v for k, v in about_group.items() if k not in ("group", "step")}),
            **plain(about),
            **plain({k: v for k, v in metrics.items() if isinstance(v, bool)}),
            **({"group.exceptions": failed} if failed else {}),
            **({"additional_histories": len(others)} if others else {}),
        },
        tools=tuple(objects(trajectory.get("tools"))),
    )


def _errors(document: Document) -> str | None:
    found = [str(e) for e in listed(document.get("logs")) if isinstance(e, str) and "error" in e.lower()[:40]]
    return found[0] if found and number(document.get("reward")) is None else None


ART = Documents(
    "ART trajectories",
    _art,
    when=lambda document, _: {"group_index", "messages"} <= document.keys() or _is_art_group(document),
    unknown={
        "weight": "metrics have no weights: they are not parts of the reward",
        "step": "the step is the file's number",
        "group": "groups have a number in their file only",
        "tokens": "token ids are not written",
        "additional histories": "conversations besides the main one are only counted",
        "failed rollouts": "rollouts that ended in an exception are only counted in their group",
    },
)

# ------------------------------------------------------------------------------------------------------------- NeMo-RL

_NEMO_KEYS = (
    "content", "rewards", "advantages", "input_lengths", "token_ids", "token_loss_mask", "generation_logprobs",
    "prev_logprobs", "reference_policy_logprobs",
)  # fmt: skip


def _nemo(document: Document, origin: Origin) -> Iterable[Item]:
    """Yield the rollout of a document in which every value is a list of one."""
    one = {k: v[0] if isinstance(v, list) and len(v) == 1 else v for k, v in document.items()}
    content = listed(one["content"]) or ([one["content"]] if isinstance(one["content"], str) else [])
    length = whole(one.get("input_lengths"))  # padding follows
    ids, mask = listed(one.get("token_ids"))[:length], listed(one.get("token_loss_mask"))[:length]
    advantages = listed(one.get("advantages"))[:length]
    if content and all(isinstance(c, Mapping) for c in content):
        prompt, completion = split(conversation(content))
    else:
        prompt, completion = _alternating([text(c) or "" for c in content], [bool(number(m)) for m in mask])
    logprobs = listed(one.get("generation_logprobs"))[:length]
    overlays = {"trainer": listed(one.get("prev_logprobs"))[:length]}
    overlays |= {"reference": listed(one.get("reference_policy_logprobs"))[:length]}
    of_agent = [a for a, m in zip(advantages, mask, strict=False) if number(m)] if mask else advantages
    yield Rollout(
        prompt=prompt,
        completion=completion,
        step=origin.step,
        split="eval" if origin.path.name.startswith("val") else origin.split or "train",
        reward=number(one["rewards"]),
        advantage=mean(of_agent or one.get("advantages")),
        token_count=length or len(ids) or None,
        tokens=(lambda: token_arrays(ids, mask, logprobs, advantages, overlays)) if ids else None,
        extra=plain({k: v for k, v in one.items() if k not in _NEMO_KEYS}),
        unknown={"advantage": SEVERAL} if several(of_agent) else {},
    )


def _alternating(texts: list[str], mask: list[bool]) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """Split texts without roles into prompt and completion. Agent and environment alternate after the prompt.

    The mask has one run per agent text, which determines the number of prompt texts: a user text, with a system text
    before it if there are two. Texts may include their part of a chat template.
    """
    turns = sum(by_agent and not (i and mask[i - 1]) for i, by_agent in enumerate(mask))
    after_prompt = 2 * turns - int(bool(mask) and mask[-1])
    first = len(texts) - after_prompt if turns and 0 < after_prompt < len(texts) else 1
    if any("<tool_call>" in turn for turn in texts[:first]):  # the mask joins turns, so rely on alternation
        first = 2 - (len(texts) + bool(mask and mask[-1])) % 2
    roles = ("system",) * (first - 1) + ("user",)
    prompt = [m for role, turn in zip(roles, texts, strict=False) for m in flat(turn, role) if m.text.strip()]
    completion: list[Message] = []
    for i, one in enumerate(texts[first:]):
        completion += flat(one, "assistant" if i % 2 == 0 else "tool") or (Message("assistant", ""),)
    return tuple(prompt), tuple(completion)


NEMO_RL = Documents(
    "NeMo-RL batches",
    _nemo,
    keys=("rewards",),
    lists=("content",),
    when=lambda document, _: "idx" in document or all(isinstance(v, list) and len(v) == 1 for v in document.values()),
    unknown={
        "components": "one reward, no components",
        "roles": "training data has texts without roles: roles are assumed to alternate after the prompt",
    },
)

# ------------------------------------------------------------------------------------------------------------- trackio

_TRACE = Mapped(
    name="trackio trace",
    keys={
        **{k: v for k, v in GENERIC.keys.items() if k not in ("correct", "extra", "components")},
        "id": ("trace_id",),
    },
    numbers="component",
)


def _is_trackio(document: Document, origin: Origin) -> bool:
    if all(k in document for k in ("run_name", "timestamp", "step")):
        return "trace_index" in document or not GENERIC.detect(document, origin)
    return isinstance(document.get("row"), Mapping) and "table" in document


def _trackio(document: Document, origin: Origin) -> Iterable[Item]:
    """Yield the rollout of a trace, or metrics and the rollouts of a table inside them.

    Skip a table if the project has traces, and an export if its database is in the same folder.
    """
    exported = "table" not in document
    if exported and any(origin.path.stem.startswith(db.stem) for db in origin.path.parent.glob("*.db")):
        return
    table = ("traces" if "messages" in document else "metrics") if exported else document["table"]
    row = document if exported else document["row"]
    row = {k: v.decode("utf-8", "replace") if isinstance(v, bytes) else v for k, v in row.items()}
    step = whole(row.get("step"))
    run = text(row.get("run_name")) or ""
    several_runs = exported or len(runs_of(origin.path)) > 1
    if table == "traces":
        known = {**mapping(row.get("metadata")), "messages": listed(row.get("messages"))}
        rollout = _TRACE.rollout({"step": step, **known, "trace_id": row.get("id")}, origin)
        group = identity(rollout)[1]
        yield replace(rollout, env=run or rollout.env, group=f"{run}:{group}" if several_runs else rollout.group)
    elif table == "metrics" and step is not None:
        values = mapping(row.get("metrics")) if not exported else {k: v for k, v in row.items() if k != "step"}
        no_traces = exported or is_empty(origin.path, "traces")
        for value in map(mapping, values.values()):
            if value.get("_type") == "trackio.table" and no_traces:
                rows = objects(value.get("_value"))
                names = frozenset(n.split("/")[1] for n in values if n.startswith("rewards/") and n.endswith("/mean"))
                yield from table_rows(rows, (trl(names), GENERIC), origin)
        prefix = f"{run}/" if several_runs else ""
        yield Numbers(step, {f"{prefix}{k}": n for k, v in values.items() if (n := number(v)) is not None})


TRACKIO = Documents("trackio project", _trackio, when=_is_trackio, unknown={"tokens": "token ids are not written"})
