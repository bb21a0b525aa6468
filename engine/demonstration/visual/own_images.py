"""A user's own pictures with questions and answers: a JSONL file, or a folder that holds one.

A row is `{"image": "a.png", "question": "...", "answer": "..."}`. `file_name` may replace `image` (as in Hugging Face
`imagefolder` datasets), `frames` lists the files of a video, `answer` may be a list of right answers, and `split` may
be `train` or `eval`. Paths are relative to the file. Rows without `split` are divided by a hash of their picture, so
that all questions about one picture stay together.
"""

from __future__ import annotations

import json
from pathlib import Path

from ....envs.base import Split
from ....envs.seeds import split_of

NAMES = ("questions.jsonl", "metadata.jsonl")
"""Files to look for in a folder."""


def read_tasks(path: str | Path) -> dict[Split, list[dict[str, object]]]:
    """Return all tasks by split. Raises ValueError with file, line, fault and fix."""
    file = Path(path).expanduser()
    if file.is_dir():
        found = [file / name for name in NAMES if (file / name).is_file()]
        if not found:
            raise ValueError(
                f"the folder {file} has no {NAMES[0]}: one JSON object a line with image, question, answer"
            )
        file = found[0]
    try:
        lines = file.read_text(encoding="utf-8-sig").split("\n")  # not splitlines: text may contain other line breaks
    except (OSError, UnicodeDecodeError) as problem:
        raise ValueError(f"images: {file} cannot be read: {problem}") from problem
    tasks: dict[Split, list[dict[str, object]]] = {"train": [], "eval": []}
    for number, line in enumerate(lines, 1):
        if line.strip():
            split, task = _task(line, f"{file}:{number}", file.parent)
            tasks[split].append(task)
    if not tasks["train"] and not tasks["eval"]:
        raise ValueError(f"{file} has no rows")
    return tasks


def _task(line: str, where: str, folder: Path) -> tuple[Split, dict[str, object]]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as problem:
        raise ValueError(f"{where}: not JSON: {problem.msg} at character {problem.pos + 1}") from problem
    if not isinstance(row, dict):
        raise ValueError(f'{where}: must be an object with "image", "question" and "answer"')
    files = row.get("frames") or [row.get("image", row.get("file_name"))]
    if not isinstance(files, list) or not all(isinstance(f, str) and f for f in files):
        raise ValueError(f'{where}: "image" must be the path of an image (or "frames" a list of them)')
    paths = [str((folder / str(f)).resolve()) for f in files]
    for path in paths:
        if not Path(path).is_file():
            raise ValueError(f"{where}: there is no file {path}")
    question, answer = row.get("question"), row.get("answer")
    if not isinstance(question, str) or not question.strip():
        raise ValueError(f'{where}: "question" must be text')
    answers = answer if isinstance(answer, list) else [answer]
    if not answers or any(isinstance(a, bool) or not isinstance(a, (str, int, float)) for a in answers):
        raise ValueError(f'{where}: "answer" must be text, a number, or a list of these')
    split = row.get("split")
    if split is None:
        split = split_of(Path(paths[0]).name, held_out=51)
    elif split in ("test", "validation"):
        split = "eval"
    if split not in ("train", "eval"):
        raise ValueError(f'{where}: "split" must be "train" or "eval", not {split!r}')
    task: dict[str, object] = {"frames": paths} if row.get("frames") else {"image": paths[0]}
    task |= {"question": question, "answer": [str(a) for a in answers] if len(answers) > 1 else str(answers[0])}
    return split, task
