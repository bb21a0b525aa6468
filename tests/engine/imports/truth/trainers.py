"""Writers of trainers."""

from __future__ import annotations

import io
import json
import sqlite3
import zipfile
from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from . import chat
from .compare import Writer
from .scenario import FINITE, Episode, Limits

NO_STOP = "finish reasons are not written"
NO_ERROR = "errors are not written"
NO_TOOL_ERROR = "a failed tool is its text only"
NO_ADVANTAGE = "advantages are not written"
NO_GROUP = "rollouts of one prompt in one step are shown as one group"
NO_PARTS = "one reward, no components"
FLAT = Limits(thoughts=True, empty=True)


def lines(path: Path, documents: Iterable[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.writelines(json.dumps(d) + "\n" for d in documents)


def parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    import pyarrow as pa
    from pyarrow import parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)


def by_step(episodes: list[Episode]) -> Iterable[tuple[int, list[Episode]]]:
    return ((step, list(given)) for step, given in groupby(episodes, key=lambda e: e.step))


def trl(episodes: list[Episode], folder: Path) -> None:
    """`GRPOTrainer._log_completions_table`: one parquet a step; messages of arrow have the fields of all others."""
    names = [*episodes[0].components]
    state = [{"step": 1, **{f"rewards/{n}/mean": 0.0 for n in names}}]
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": state, "global_step": 1}))
    for step, given in by_step(episodes):
        rows = [
            {
                "step": step,
                "prompt": chat.asked(e),
                "completion": chat.said(e),
                **e.components,
                "advantage": e.advantage,
            }
            for e in given
        ]
        parquet(folder / "completions" / f"completions_{step:05}.parquet", rows)


def _flat(e: Episode) -> tuple[str, str]:
    """Prompt and completion without special tokens, as a tokenizer decodes them."""
    asked = "".join(f"{m['role']}\n{m['content']}\n" for m in chat.asked(e)) + "assistant\n"
    said = ""
    for i, turn in enumerate(e.turns):
        said += ("\nassistant\n" if i else "") + chat.hermes(turn)
        if answer := chat.answers(turn):
            said += f"\nuser\n{answer}"
    return asked, said


def verl(episodes: list[Episode], folder: Path) -> None:
    """`RayPPOTrainer._dump_generations`: columns of one step in `<step>.jsonl`, appended line by line."""
    for e in episodes:
        asked, said = _flat(e)
        row = {"input": asked, "output": said, "gts": e.answer, "score": e.reward, "step": e.step}
        row |= {"uid": f"{e.group}_{e.index}_0", **e.components}
        lines(folder / ("validation" if e.split == "eval" else "rollout") / f"{e.step}.jsonl", [row])


def skyrl(episodes: list[Episode], folder: Path) -> None:
    """`dump_per_dataset_eval_results`: one file a dataset below a folder of the step."""
    for e in episodes:
        last = [{"role": "assistant", "content": ""}]
        talk = [m for i, t in enumerate(e.turns) for m in _chat_turn(t, i)]
        row: dict[str, Any] = {
            "input_prompt": chat.chatml(chat.asked(e), generation=True),
            "output_response": _completion(talk or last),
        }
        row |= {"score": e.reward, "stop_reason": e.stop, "env_class": "env", "data_source": "set"}
        row["env_extras"] = {"reward_spec": {"ground_truth": e.answer}}
        lines(folder / "dumped_evals" / f"global_step_{e.step}_evals" / "set.jsonl", [row])


def _chat_turn(turn: Any, _index: int) -> chat.Messages:
    heard = chat.answers(turn)
    said = {"role": "assistant", "content": chat.hermes(turn)}
    return [said, *([{"role": "user", "content": heard}] if heard else [])]


def _completion(talk: chat.Messages) -> str:
    """The completion as text with special tokens, without the first mark, which is the prompt's."""
    return chat.chatml(talk).removeprefix("<|im_start|>assistant\n")


def areal(episodes: list[Episode], folder: Path) -> None:
    """`WorkflowExecutor._dump_trajectory`: a file a task, below a folder of the policy's version."""
    tasks = {g: i for i, g in enumerate(dict.fromkeys(e.group for e in episodes))}
    for e in episodes:
        talk = [m for i, t in enumerate(e.turns) for m in _chat_turn(t, i)]
        row = {"task_id": tasks[e.group], "sample_idx": e.index, "seqlen": 9, "prompt_len": 4, "head_version": e.step}
        row |= {"tail_version": e.step, "reward": e.reward, "prompt": chat.chatml(chat.asked(e), generation=True)}
        folder_ = folder / ("eval-rollout" if e.split == "eval" else "rollout") / str(e.step)
        lines(folder_ / f"{tasks[e.group]:04}.jsonl", [{**row, "completion": _completion(talk)}])


def nemo(episodes: list[Episode], folder: Path) -> None:
    """`log_batched_dict_as_jsonl`: every value a list of one; `content` of a training is the texts of all messages."""
    for e in episodes:
        texts = [m["content"] for m in chat.asked(e)]
        mask = [0] * len(texts)
        for turn in e.turns:
            texts.append(chat.hermes(turn))
            mask.append(1)
            if heard := chat.answers(turn):  # the environment's one message
                texts.append(heard)
                mask.append(0)
        row: dict[str, Any] = {"content": [texts], "rewards": [e.reward], "input_lengths": [len(mask)]}
        row |= {"token_ids": [list(range(len(mask)))], "token_loss_mask": [mask], "sample_loss_mask": [1.0]}
        row["advantages"] = [[e.advantage * m for m in mask]] if e.advantage is not None else [None]
        if e.split == "eval":
            row = {"content": [[*chat.asked(e), *_plain(e)]], "rewards": [e.reward], "idx": e.index}
        lines(folder / f"{'val' if e.split == 'eval' else 'train'}_data_step{e.step}.jsonl", [row])


def _plain(e: Episode) -> chat.Messages:
    """Messages with calls in the text, and a message for each result."""
    found: chat.Messages = []
    for turn in e.turns:
        found.append({"role": "assistant", "content": chat.hermes(turn)})
        found += [{"role": "tool", "content": c.result} for c in turn.calls]
        found += [{"role": "user", "content": turn.heard}] if turn.heard else []
    return found


def rllm(episodes: list[Episode], folder: Path) -> None:
    """`EpisodeLogger.log_episode`: a file an episode; each step repeats the conversation so far."""
    for e in episodes:
        talk, steps = chat.asked(e), []
        messages = chat.said(e)
        for i, turn in enumerate(e.turns):
            talk = [*talk, messages.pop(0)]
            steps.append(
                {"chat_completions": talk, "model_response": turn.text, "reward": 0.0, "done": i == len(e.turns) - 1}
            )
            while messages and messages[0]["role"] != "assistant":
                talk = [*talk, messages.pop(0)]
        if talk != steps[-1]["chat_completions"]:
            steps[-1]["chat_completions"] = talk
        trajectory = {"name": "agent", "uid": e.id, "reward": e.reward, "steps": steps}
        document = {
            "training_step": e.step,
            "epoch": 0,
            "episode_id": f"{e.group}:{e.index}",
            "task": {"question": e.question},
        }
        document |= {"task_hash": e.group, "is_correct": True, "termination_reason": "error" if e.error else "env_done"}
        document |= {"metrics": dict(e.components), "metadata": {"error": {"message": e.error}} if e.error else {}}
        path = folder / f"{'val' if e.split == 'eval' else 'train'}_step_{e.step}_epoch_0" / f"{e.id}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({**document, "trajectories": [trajectory]}, indent=2))


def art(episodes: list[Episode], folder: Path) -> None:
    """`write_trajectory_groups_parquet`: a file a step and split. Version 2 keeps the trajectory as JSON."""
    for (step, split), given in groupby(episodes, key=lambda e: (e.step, e.split)):
        rows = []
        for g, (_, group) in enumerate(groupby(given, key=lambda e: e.group)):
            for e in group:
                entries: chat.Messages = chat.asked(e)
                for m in chat.said(e):
                    choice = {
                        "finish_reason": "tool_calls" if m.get("tool_calls") else "stop",
                        "index": 0,
                        "message": m,
                    }
                    entries.append(choice if m["role"] == "assistant" else m)
                last = next(x for x in reversed(entries) if "message" in x)
                last["finish_reason"] = e.stop
                whole = {
                    "messages_and_choices": entries,
                    "reward": e.reward,
                    "metrics": dict(e.components),
                    "metadata": {},
                }
                rows.append(
                    {"format_version": 2, "group_index": g, "trajectory_index": e.index, "reward": e.reward,
                     "group_json": json.dumps({"metadata": {}}), "group_metadata": "{}",
                     "trajectory_json": json.dumps(whole), "metrics": json.dumps(e.components),
                     "metadata": "{}", "messages": chat.asked(e)}
                )  # fmt: skip
        parquet(folder / "trajectories" / ("val" if split == "eval" else "train") / f"{step:04}.parquet", rows)


def agentlightning(episodes: list[Episode], folder: Path) -> None:
    """A wandb artifact: JSON lines in a zip. The prompt holds all turns but the last."""
    for (step, split), given in groupby(episodes, key=lambda e: (e.step, e.split)):
        text = io.StringIO()
        for e in given:
            row = {"rollout_id": e.id, "reward": e.reward, "prompt": chat.chatml(chat.asked(e), generation=True)}
            text.write(json.dumps({**row, "response": chat.hermes(e.turns[0]) + "<|im_end|>"}) + "\n")
        path = folder / f"step_{step}" / f"{'validation' if split == 'eval' else 'train'}_trajectories.jsonl.zip"
        path.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(path.stem, text.getvalue())


def trackio(episodes: list[Episode], folder: Path) -> None:
    """`SQLiteStorage`: a row a trace."""
    with sqlite3.connect(folder / "project.db") as db:
        db.execute(
            "CREATE TABLE traces (id TEXT PRIMARY KEY, run_id TEXT, timestamp TEXT, run_name TEXT, step INTEGER, "
            "key TEXT, trace_index INTEGER, messages TEXT, metadata TEXT)"
        )
        for i, e in enumerate(episodes):
            about = {"reward": e.reward, "advantage": e.advantage, "group": e.group, **e.components, "split": e.split}
            about |= {"stop_reason": e.stop, "error": e.error or None}
            talk = json.dumps([*chat.asked(e), *chat.said(e)])
            row = (e.id, "r", "now", "run", e.step, "trace", i, talk, json.dumps(about))
            db.execute("INSERT INTO traces VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
    db.close()


def trackio_table(episodes: list[Episode], folder: Path) -> None:
    """TRL with `report_to=trackio`: `trackio.Table(dataframe=…)` in the metrics of a step."""
    with sqlite3.connect(folder / "project.db") as db:
        db.execute(
            "CREATE TABLE metrics (id INTEGER PRIMARY KEY, run_id TEXT, timestamp TEXT, run_name TEXT, step INTEGER, "
            "metrics TEXT)"
        )
        step, value = 0, {}
        for step, given in by_step(episodes):
            rows = [
                {"step": str(step), "prompt": chat.chatml(chat.asked(e), generation=True),
                 "completion": _completion([m for i, t in enumerate(e.turns) for m in _chat_turn(t, i)]),
                 **e.components, "advantage": e.advantage}
                for e in given
            ]  # fmt: skip
            value = {"completions": {"_type": "trackio.table", "_value": rows}, "loss": 0.5}
            value |= {f"rewards/{n}/mean": 0.0 for n in episodes[0].components}
            db.execute("INSERT INTO metrics VALUES (NULL, 'r', 'now', 'run', ?, ?)", (step, json.dumps(value)))
        again = {k: v for k, v in value.items() if k != "loss"}  # TRL logs once more when the training ends
        db.execute("INSERT INTO metrics VALUES (NULL, 'r', 'now', 'run', ?, ?)", (step + 1, json.dumps(again)))
    db.close()


def wandb(episodes: list[Episode], folder: Path) -> None:
    """`wandb.Table(dataframe=…)` as TRL logs it, and the same file again as the run's last table."""
    made, step = {}, 0
    for step, given in by_step(episodes):
        columns = ["step", "prompt", "completion", *episodes[0].components, "advantage"]
        data = [
            [str(step), chat.chatml(chat.asked(e), generation=True),
             _completion([m for i, t in enumerate(e.turns) for m in _chat_turn(t, i)]), 
             *e.components.values(), e.advantage]
            for e in given
        ]  # fmt: skip
        made[step] = json.dumps({"columns": columns, "data": data})
    made[step + 1] = made[step]  # TRL logs once more when the training ends
    for i, (step, text) in enumerate(made.items()):
        path = folder / "offline-run-1-abc" / "files" / "media" / "table" / f"completions_{step}_{i:020x}.table.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def tinker(episodes: list[Episode], folder: Path) -> None:
    """`TrainingRunStore.write_rollout_summaries`: numbers of each rollout, and the environment's logs of each turn."""
    groups: dict[str, int] = {}
    for e in episodes:
        key = (e.step, e.split)
        groups.setdefault(e.group, sum(1 for other in groups.values() if other is key) or len(groups))
        steps = []
        for i, turn in enumerate(e.turns):
            logs = {"assistant_content": turn.text}
            for j, c in enumerate(turn.calls):
                logs |= {f"tool_call_{j}": f"{c.name}({json.dumps(c.arguments)})", f"tool_result_{j}": c.result}
            step = {"step_idx": i, "ob_len": 3, "ac_len": 3, "reward": 0.0, "metrics": {}, "logs": logs}
            steps.append({**step, "episode_done": turn is e.turns[-1], "stop_reason": turn.stop})
        row = {"split": "test" if e.split == "eval" else "train", "iteration": e.step, "group_idx": groups[e.group]}
        row |= {
            "traj_idx": e.index,
            "tags": ["env", e.prompt_id],
            "sampling_client_step": e.step,
            "total_reward": e.reward,
        }
        row |= {"final_reward": 0.0, "trajectory_metrics": dict(e.components), "steps": steps}
        name = "eval_test" if e.split == "eval" else "train"
        lines(folder / f"iteration_{e.step:06}" / f"{name}_rollout_summaries.jsonl", [row])


def groups_of_rows(episodes: list[Episode], folder: Path) -> None:
    """Plain JSON lines as documented: a rollout a line."""
    rows = []
    for e in episodes:
        row = {
            "id": e.id,
            "step": e.step,
            "group": e.group,
            "prompt": chat.asked(e),
            "completion": chat.said(e, errors=True),
        }
        row |= {"reward": e.reward, "advantage": e.advantage, "split": e.split, "stop_reason": e.stop}
        rows.append({**row, "error": e.error or None, "components": dict(e.components), "answer": e.answer})
    lines(folder / "rollouts.jsonl", rows)


_FLAT = {"tool errors": NO_TOOL_ERROR, "stop": NO_STOP, "error": NO_ERROR}
_TEXT = Limits()


def eval_first(e: Episode) -> Any:
    return e.split != "eval"


def eval_last(e: Episode) -> Any:
    return e.split == "eval"


_NO_EVALUATION = {"split": "evaluations are not written", "reward": "TRL writes no total", "group": NO_GROUP}
_TABLE = {**_FLAT, **_NO_EVALUATION}
_TRL = Limits(evaluations=False, advantage=FINITE, component=FINITE)

TRAINERS = (
    Writer("TRL `completions/*.parquet`", "TRL 1.16.0", trl, _TABLE, _TRL),
    Writer("TRL with wandb", "wandb 0.31.0", wandb, _TABLE, _TRL, shown=chat.hermes),
    Writer("TRL with trackio", "trackio 0.43.0", trackio_table, _TABLE, _TRL, shown=chat.hermes),
    Writer("verl", "verl 0.9.1", verl, {**_FLAT, "advantage": NO_ADVANTAGE}, Limits(component=FINITE),
           shown=chat.hermes,
           order=lambda e: (e.split == "eval", e.step)),
    Writer("SkyRL", "skyrl 0.4.0", skyrl, {
        "tool errors": NO_TOOL_ERROR, "error": NO_ERROR, "advantage": NO_ADVANTAGE, "components": NO_PARTS,
        "group": NO_GROUP, "split": "evaluations only"}, Limits(evaluations=False), shown=chat.hermes),
    Writer("AReaL", "areal 1.0.4", areal, {
        **_FLAT, "advantage": NO_ADVANTAGE, "components": NO_PARTS, "step": "it writes the policy's version"},
        shown=chat.hermes, order=eval_first),
    Writer("NeMo-RL", "NeMo-RL 7ea279ab", nemo, {**_FLAT, "components": NO_PARTS, "group": NO_GROUP},
           shown=chat.hermes,
           seen=lambda e: replace(e, advantage=None) if e.split == "eval" else e, order=eval_last),
    Writer("rLLM", "rLLM 9beb6e0f", rllm, {"tool errors": NO_TOOL_ERROR, "advantage": NO_ADVANTAGE},
           seen=lambda e: replace(e, stop="error" if e.error else "env_done"), order=eval_last),
    Writer("ART", "openpipe-art 0.5.23", art, {
        "tool errors": NO_TOOL_ERROR, "advantage": NO_ADVANTAGE, "error": "failed rollouts are counted only"},
        order=eval_last),
    Writer("agentlightning", "agentlightning 1.0.2", agentlightning, {
        **_FLAT, "advantage": NO_ADVANTAGE, "components": NO_PARTS, "group": NO_GROUP},
        Limits(turns=1, calls=False), shown=chat.hermes),
    Writer("trackio traces", "trackio 0.43.0", trackio, {"tool errors": NO_TOOL_ERROR}, Limits(component=FINITE)),
    Writer("tinker-cookbook", "tinker-cookbook 08ee6ea2", tinker, {
        "tool errors": NO_TOOL_ERROR, "advantage": NO_ADVANTAGE, "error": NO_ERROR,
        "prompt": "only the logtree contains prompts", "thoughts": "thoughts are not logged apart"},
        seen=lambda e: replace(e, turns=tuple(replace(t, heard="") for t in e.turns)),
        order=lambda e: (e.step, e.split != "eval")),
    Writer("rollouts in JSON lines", "docs/importing.md", groups_of_rows),
)  # fmt: skip
