"""What trainers write in shapes of their own: ART, NeMo-RL, trackio; and what is in a zip."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ..containers.sqlite import is_empty, runs_of
from ..convert import identity
from ..format import Format, Origin
from ..mapped import SEVERAL, Mapped, mean, plain, several
from ..messages import conversation, error_text, flat, split
from ..rollout import (
    Item,
    Message,
    Numbers,
    Rollout,
    Score,
    listed,
    mapping,
    number,
    parsed,
    text,
    whole,
)
from ..tokens import Tokens
from .generic import table_rows
from .tables import GENERIC
from .trl import Trl

_NO_ADVANTAGE = "advantages are not written"


class Art:
    """ART's parquet, version 2: `trajectory_json` is what counts, the other columns are copies; and JSON lines of older
    versions, a group on each."""

    name = "ART trajectories"
    unknown: Mapping[str, str] = {
        "advantage": _NO_ADVANTAGE,
        "weight": "metrics have no weights: they are no parts of the reward",
        "step": "the step is the file's number",
        "group": "groups have a number in their file only",
        "tokens": "token ids are not written",
        "additional histories": "of conversations beside the main one only their number is shown",
        "failed rollouts": "of rollouts that ended in an exception only their number is written with their group",
    }
    _READ = frozenset(
        (
            *("messages_and_choices", "messages", "additional_histories", "tools", "reward", "metrics", "metadata"),
            *("exception", "group_index", "group_json", "group_metadata", "trajectory_index", "trajectory_json"),
        )
    )

    def detect(self, document: Any, origin: Origin) -> bool:
        """By its columns (version 1 has no `trajectory_json`), or as a group of trajectories."""
        if not isinstance(document, Mapping):
            return False
        return ("group_index" in document and "messages" in document) or _is_art_group(document)

    def open(self, document: Any, origin: Origin) -> Iterable[Item]:
        """Yield a rollout for each row or trajectory."""
        if not _is_art_group(document):
            yield self._rollout(document, origin)
            return
        group = {k: v for k, v in document.items() if k != "trajectories"}
        for trajectory in document["trajectories"]:
            if isinstance(trajectory, Mapping):
                yield self._rollout({**trajectory, "group_json": group}, origin)

    def _rollout(self, document: Mapping[str, Any], origin: Origin) -> Rollout:
        whole_ = mapping(document.get("trajectory_json")) or document
        group = mapping(document.get("group_json"))
        about_group = {**mapping(document.get("group_metadata")), **mapping(group.get("metadata"))}
        failed = len(listed(group.get("exceptions")))
        number_ = origin.path.stem
        step = whole(about_group.get("step"))
        step = step if step is not None else whole(number_) if number_.isdecimal() else origin.step
        entries = listed(whole_.get("messages_and_choices")) or listed(whole_.get("messages"))
        prompt, said = split(conversation([_choice(e) for e in entries]))
        metrics, about = mapping(whole_.get("metrics")), mapping(whole_.get("metadata"))
        position = text(document.get("group_index"))
        split_name = origin.path.parent.name
        others = listed(whole_.get("additional_histories"))
        first, last = (whole(whole_.get(f"{k}_policy_version")) for k in ("initial", "final"))
        return Rollout(
            prompt=prompt,
            completion=said,
            step=step,
            group=text(about_group.get("group")) or (f"{split_name}:{step}:{position}" if position else ""),
            index=whole(document.get("trajectory_index")),
            prompt_id=text(about.get("prompt_id")) or "",
            split="eval" if split_name in ("val", "eval", "test") else "train",
            reward=number(whole_.get("reward", document.get("reward"))),
            components={k: Score(number(v)) for k, v in metrics.items() if not isinstance(v, bool)},
            answer=text(about.get("answer")),
            expected=text(about.get("expected")),
            stop=next((m.stop for m in reversed(said) if m.stop), ""),
            error=error_text(whole_.get("exception")) or error_text(metrics.get("error")) or _errors(document),
            policy_version=first if first == last else None,
            extra={
                **plain({k: v for k, v in whole_.items() if k not in self._READ}),
                **plain({f"group.{k}": v for k, v in about_group.items() if k not in ("group", "step")}),
                **plain(about),
                **plain({k: v for k, v in metrics.items() if isinstance(v, bool)}),
                **({"group.exceptions": failed} if failed else {}),
                **({"additional_histories": len(others)} if others else {}),
            },
            tools=tuple(t for t in listed(whole_.get("tools")) if isinstance(t, Mapping)),
        )


class NemoRl:
    """NeMo-RL: every value is a list of one, and texts have no roles: they take turns, behind those of the prompt."""

    name = "NeMo-RL batches"
    unknown: Mapping[str, str] = {
        "components": "one reward, no components",
        "roles": "training data has texts without roles: they are taken to alternate behind the prompt, of which the "
        "mask of the tokens says how many texts it has",
        "group": "no group is written: rollouts of one prompt in one step are shown as one",
        "advantage": "validation has no advantages",
    }
    _READ = frozenset(
        ("content", "rewards", "advantages", "input_lengths", "token_ids", "token_loss_mask", "generation_logprobs",
         "prev_logprobs", "reference_policy_logprobs")
    )  # fmt: skip

    def detect(self, document: Any, origin: Origin) -> bool:
        """Return whether the document has the keys of this format."""
        return (
            isinstance(document, Mapping)
            and isinstance(document.get("content"), list)
            and "rewards" in document
            and ("idx" in document or all(isinstance(v, list) and len(v) == 1 for v in document.values()))
        )

    def open(self, document: Any, origin: Origin) -> Iterable[Item]:
        """Yield the rollout."""
        one = {k: v[0] if isinstance(v, list) and len(v) == 1 else v for k, v in document.items()}
        content = listed(one["content"]) or ([one["content"]] if isinstance(one["content"], str) else [])
        length = whole(one.get("input_lengths"))  # behind it is padding
        ids, mask = listed(one.get("token_ids"))[:length], listed(one.get("token_loss_mask"))[:length]
        advantages = listed(one.get("advantages"))[:length]
        if content and all(isinstance(c, Mapping) for c in content):
            prompt, said = split(conversation(content))
        else:
            prompt, said = _alternating([text(c) or "" for c in content], [bool(number(m)) for m in mask])
        logprobs = listed(one.get("generation_logprobs"))[:length]
        overlays = {"trainer": listed(one.get("prev_logprobs"))[:length]}
        overlays |= {"reference": listed(one.get("reference_policy_logprobs"))[:length]}
        spoken = [a for a, m in zip(advantages, mask, strict=False) if number(m)] if mask else advantages
        yield Rollout(
            prompt=prompt,
            completion=said,
            step=origin.step,
            split="eval" if origin.path.name.startswith("val") else origin.split or "train",
            reward=number(one["rewards"]),
            advantage=(mean(spoken) if len(spoken) > 1 else number(spoken))
            if spoken
            else number(one.get("advantages")),
            token_count=length or len(ids) or None,
            tokens=(lambda: Tokens.of(ids, mask, logprobs, advantages, overlays)) if ids else None,
            extra=plain({k: v for k, v in one.items() if k not in self._READ}),
            unknown={"advantage": SEVERAL} if several(spoken) else {},
        )


def _alternating(texts: list[str], mask: list[bool]) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """Prompt and completion of texts that are agent's and others' in turn behind those of the prompt. Texts may hold
    their part of a chat template. The runs of the mask are the agent's texts: what is more than they and the answers
    between them is prompt, a system's message before the user's."""
    turns = sum(spoken and not (i and mask[i - 1]) for i, spoken in enumerate(mask))
    behind = 2 * turns - int(bool(mask) and mask[-1])
    first = len(texts) - behind if turns and 0 < behind < len(texts) else 1
    roles = ("system",) * (first - 1) + ("user",)
    prompt = [m for role, said in zip(roles, texts, strict=False) for m in flat(said, role) if m.text.strip()]
    said: list[Message] = []
    for i, one in enumerate(texts[first:]):
        said += flat(one, "assistant" if i % 2 == 0 else "tool") or (Message("assistant", ""),)
    return tuple(prompt), tuple(said)


class Trackio:
    """trackio's database, or the parquet files that it exports: traces are rollouts, metrics are metrics."""

    name = "trackio project"
    unknown: Mapping[str, str] = {
        "weight": "metadata has no weights",
        "tokens": "token ids are not written",
        "reward": "the trace's metadata has no reward",
        "advantage": "the trace's metadata has no advantage",
    }
    _TRACE = Mapped(
        name="trackio trace",
        keys={
            **{k: v for k, v in GENERIC.keys.items() if k not in ("correct", "extra", "components")},
            "id": ("trace_id",),
        },
        numbers="component",
    )

    def detect(self, document: Any, origin: Origin) -> bool:
        """A row of one of its tables."""
        if not isinstance(document, Mapping):
            return False
        if all(k in document for k in ("run_name", "timestamp", "step")):
            return "trace_index" in document or not GENERIC.detect(document, origin)
        return isinstance(document.get("row"), Mapping) and "table" in document

    def open(self, document: Any, origin: Origin) -> Iterable[Item]:
        """Rollouts of traces; metrics. The same rollouts logged as a table besides are passed over, and so is an
        export that lies beside its database."""
        exported = "table" not in document
        if exported and any(origin.path.stem.startswith(db.stem) for db in origin.path.parent.glob("*.db")):
            return
        table = ("traces" if "messages" in document else "metrics") if exported else document["table"]
        row = document if exported else document["row"]
        row = {k: v.decode("utf-8", "replace") if isinstance(v, bytes) else v for k, v in row.items()}
        step = whole(row.get("step"))
        run = text(row.get("run_name")) or ""
        several_runs = exported or len(runs_of(origin.path)) > 1  # of each its own groups and metrics
        if table == "traces":
            flat = {**mapping(row.get("metadata")), "messages": listed(row.get("messages"))}
            made = self._TRACE.rollout({"step": step, **flat, "trace_id": row.get("id")}, origin)
            group = identity(made)[1]
            yield replace(made, env=run or made.env, group=f"{run}:{group}" if several_runs else made.group)
        elif table == "metrics" and step is not None:
            values = mapping(row.get("metrics")) if not exported else {k: v for k, v in row.items() if k != "step"}
            for value in map(mapping, values.values()):
                if value.get("_type") == "trackio.table" and (exported or _without_traces(origin)):  # TRL's completions
                    rows = [r for r in listed(value.get("_value")) if isinstance(r, Mapping)]
                    names = frozenset(
                        n.split("/")[1] for n in values if n.startswith("rewards/") and n.endswith("/mean")
                    )
                    yield from table_rows(rows, (Trl(names), GENERIC), origin)
            prefix = f"{run}/" if several_runs else ""
            yield Numbers(step, {f"{prefix}{k}": n for k, v in values.items() if (n := number(v)) is not None})


def _without_traces(origin: Origin) -> bool:
    """Return whether a project's rollouts are in its tables only."""
    return is_empty(origin.path, "traces", origin.path.stat().st_size)


class Zipped:
    """Documents in a zip that are of another format (a wandb artifact of agentlightning). What folders and names say
    of a file, those of the member say, too."""

    def __init__(self, inner: Format) -> None:
        self.inner = inner
        self.name = f"{inner.name} in a zip"
        self.unknown = inner.unknown

    def detect(self, document: Any, origin: Origin) -> bool:
        """Return whether the format knows the member."""
        if not isinstance(document, Mapping) or set(document) != {"member", "document"}:
            return False
        return self.inner.detect(document["document"], _member(document, origin))

    def open(self, document: Any, origin: Origin) -> Iterable[Item]:
        """Yield the items of the member."""
        return self.inner.open(document["document"], _member(document, origin))


def _member(document: Mapping[str, Any], origin: Origin) -> Origin:
    inside = [part for part in str(document["member"]).split("/") if part not in ("", ".", "..")]
    return Origin(origin.path.joinpath(*inside), origin.root)  # never a path out of the zip


def _is_art_group(document: Mapping[str, Any]) -> bool:
    trajectories = document.get("trajectories")
    return isinstance(trajectories, list) and (
        "exceptions" in document or any(isinstance(t, Mapping) and "messages_and_choices" in t for t in trajectories)
    )


def _choice(entry: Any) -> Any:
    """Return a message with its calls parsed; a choice keeps its finish reason."""
    if isinstance(entry, Mapping) and isinstance(entry.get("tool_calls"), str):
        return {**entry, "tool_calls": parsed(entry["tool_calls"])}
    return entry


def _errors(document: Mapping[str, Any]) -> str | None:
    found = [str(e) for e in listed(document.get("logs")) if isinstance(e, str) and "error" in e.lower()[:40]]
    return found[0] if found and number(document.get("reward")) is None else None


__all__ = ["Art", "NemoRl", "Trackio", "Zipped"]
