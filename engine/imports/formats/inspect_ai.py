"""inspect-ai logs: one document, or a zip with one member per sample and summaries of all samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from ..containers.zip_file import member_of, numbers_of
from ..format import Documents, Origin
from ..mapped import at, plain, scores
from ..messages import conversation, error_text, split
from ..rollout import Expected, Item, Named, Rollout, Score
from ..values import Document, listed, mapping, number, objects, summed, text, whole


def _is_log(document: Document, origin: Origin) -> bool:
    if isinstance(document.get("member"), str) and "document" in document:
        member = document["member"]
        is_part = member.startswith("_journal/") or member in ("header.json", "summaries.json", "reductions.json")
        return is_part or _is_sample(document["document"])
    return isinstance(document.get("eval"), Mapping) and ("samples" in document or "status" in document)


def _open(document: Document, origin: Origin) -> Iterable[Item]:
    """Yield one rollout per sample. The epochs of a sample form its group."""
    if "member" in document:
        if _is_sample(document["document"]):
            yield _sample(document["document"], _header(origin))
        elif "summaries" in document["member"]:  # they cover all samples, including unreadable ones
            yield from _summaries(objects(document["document"]), origin)
        return
    header = {k: v for k, v in document.items() if k != "samples"}
    for sample in objects(document.get("samples")):
        yield _sample(sample, header)


INSPECT = Documents(
    "inspect-ai samples",
    _open,
    when=_is_log,
    unknown={
        "reward": "scores are components; inspect-ai has no total",
        "step": "no training step is written (metadata may hold one)",
    },
)


def _is_sample(document: object) -> bool:
    return isinstance(document, Mapping) and "epoch" in document and "messages" in document and "id" in document


def _header(origin: Origin) -> Document:
    """Return the header of a packed log, or the header's beginning in the journal."""
    for name in ("header.json", "_journal/start.json"):
        found = member_of(origin.path, name)
        if isinstance(found, Mapping):
            return found
    return {}


def _summaries(summaries: list[Document], origin: Origin) -> Iterator[Item]:
    """Yield the samples as the summaries describe them, and the ids of samples that are missing from the log."""
    header, missing = _header(origin), []
    for summary in summaries:
        if not isinstance(uuid := summary.get("uuid"), str):
            continue
        member = numbers_of(origin.path).get(f"samples/{summary.get('id')}_epoch_{summary.get('epoch')}.json")
        if member is None:
            missing.append(uuid)
            continue
        input_ = summary.get("input")
        messages = input_ if isinstance(input_, list) else [{"role": "user", "content": input_}]
        rollout = _sample({**summary, "messages": messages}, header)
        # the input may be a conversation, and the completion is not known yet
        yield Expected(replace(rollout, prompt=(*rollout.prompt, *rollout.completion), completion=()), member, 0)
    if missing:
        yield Named(tuple(missing))


def _sample(sample: Document, header: Document) -> Rollout:
    attachments = {f"attachment://{k}": v for k, v in mapping(sample.get("attachments")).items()}
    # A sample that failed early has no messages.
    messages = listed(sample.get("messages")) or listed(sample.get("input"))
    if not messages and sample.get("input"):
        messages = [{"role": "user", "content": sample["input"]}]
    about = {**mapping(at(header, "eval.metadata")), **mapping(header.get("metadata"))}
    metadata = mapping(sample.get("metadata"))
    step = next((s for k in ("step", "training_step") if (s := whole(metadata.get(k, about.get(k)))) is not None), None)
    components: dict[str, Score] = {}
    labels: dict[str, object] = {}
    answer, correct = None, None
    graded = mapping(sample.get("scores")) or ({"score": sample["score"]} if sample.get("score") else {})
    for name, score in graded.items():
        value = score.get("value") if isinstance(score, Mapping) else score
        if isinstance(value, Mapping):
            parts = {k: _LETTERS.get(v, v) if isinstance(v, str) else v for k, v in value.items()}
            components.update({f"{name}.{k}": v for k, v in scores(parts).items()})
        elif isinstance(value, str) and value in _LETTERS:
            components[name] = Score(_LETTERS[value])
            correct = value == "C" if value in "CI" else correct
        elif value is None or number(value) is not None:
            components[name] = Score(number(value))
        else:  # text or a list
            labels[name] = value
        answer = answer or (text(score.get("answer")) if isinstance(score, Mapping) else None)
    model, used = text(at(header, "eval.model")) or "", mapping(sample.get("model_usage"))
    usage = [mapping(u) for u in ([used[model]] if model in used else used.values())]  # exclude the tokens of judges
    target = sample.get("target")
    limit = sample.get("limit")
    limit = limit.get("type") if isinstance(limit, Mapping) else limit
    choice = mapping(next(iter(listed(at(sample, "output.choices"))), None))
    task = text(at(header, "eval.task")) or ""
    sample_id = text(sample.get("id")) or ""
    return Rollout(
        *split(conversation(_restored(messages, attachments))),
        id=text(sample.get("uuid")) or "",
        step=step,
        group=f"{task}:{sample_id}:{run}" if (run := text(at(header, "eval.eval_id"))) else f"{task}:{sample_id}",
        prompt_id=sample_id,
        index=whole(sample.get("epoch")),
        env=task,
        model=model,
        split="eval",
        components=components,
        answer=answer,
        expected=text(target if not isinstance(target, list) else ", ".join(map(str, target))),
        correct=correct,
        stop=text(limit) or text(choice.get("stop_reason")) or "",
        error=error_text(sample.get("error")),
        token_count=summed([u.get("total_tokens") for u in usage]),
        extra=plain({**labels, **{k: v for k, v in metadata.items() if k != "step"}}),
        seconds=number(sample.get("total_time")) or 0.0,
    )


_LETTERS = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}
"""inspect-ai's grades: correct, incorrect, partial, no answer."""


def _restored(value: object, attachments: Document) -> object:
    if not attachments:
        return value
    if isinstance(value, str):
        return attachments.get(value, value) if value.startswith("attachment://") else value
    if isinstance(value, list):
        return [_restored(v, attachments) for v in value]
    if isinstance(value, Mapping):
        return {k: _restored(v, attachments) for k, v in value.items()}
    return value
