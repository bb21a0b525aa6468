"""Each writer's real files, against numbers read from them by other means."""

from __future__ import annotations

import json
import math
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from grpo_tui.engine.imports.errors import DumpError
from grpo_tui.engine.imports.opening import open_dump
from grpo_tui.engine.imports.tokens import tokens_of_nodes
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.search.query import Query
from grpo_tui.engine.runs.types import TrajectoryRecord, TrajectoryRow

PEERS = Path(__file__).parent / "peer_dumps"
Open = Callable[[Path | str], RunReader]


def lines(folder: str, pattern: str = "**/*.jsonl") -> list[dict[str, Any]]:
    return [json.loads(text) for path in sorted(PEERS.joinpath(folder).glob(pattern)) for text in path.open()]


def same(found: Iterable[float | None], stated: Iterable[float | None]) -> bool:
    """Equal as collections, with NaN equal to NaN and to nothing."""

    def key(value: float | None) -> str:
        return "nan" if value is None or math.isnan(value) else f"{value:.5f}"

    return Counter(map(key, found)) == Counter(map(key, stated))


def rows(reader: RunReader) -> list[TrajectoryRow]:
    return reader.rollouts.page(limit=1000)


def components(record: TrajectoryRecord) -> dict[str, float | None]:
    if record.breakdown is None:
        return {}
    return {name: value.raw for name, value in record.breakdown.steps[-1].components.items()}


def test_trl(opened: Open):
    from pyarrow import parquet

    stated = [r for p in sorted(PEERS.glob("trl/completions/*")) for r in parquet.read_table(p).to_pylist()]
    reader = opened("trl")
    found = rows(reader)
    assert len(found) == len(stated) == 24
    assert [r.step for r in found] == [r["step"] for r in stated]
    assert same([r.advantage for r in found], [r["advantage"] for r in stated])
    assert all(r.reward is None for r in found), "TRL writes no total: none is invented"
    assert len({r.group for r in found}) == 6
    for name in ("correct", "format", "length"):
        assert same([r.extra.get(f"component.{name}") for r in found], [r[name] for r in stated])
    assert [r.extra.get("extracted") for r in found] == [r["extracted"] for r in stated]
    first = reader.bodies.trajectory(1)
    assert [s.action for s in first.trajectory.steps] == ["segment_object_at", "get_properties", None]
    assert first.trajectory.steps[0].calls[0].arguments == {"x": 13, "y": 30}, "arrow's nulls are no arguments"
    assert first.trajectory.steps[0].calls[0].result == "mask 1: 210 pixels"
    broken = reader.bodies.trajectory(3).trajectory.steps[0]
    assert broken.parse_error and broken.calls[0].problem
    assert "reward" in first.unknown and "weight" in first.unknown
    assert dict(reader.metrics.points("rewards/correct/mean")) == {1: 0.25, 2: 0.6666666865348816, 3: 0.625}


@pytest.mark.parametrize(("folder", "split"), [("verl/rollout", "train"), ("verl/rollout_v0", "train")])
def test_verl(opened: Open, folder: str, split: str):
    stated = lines(folder)
    reader = opened(folder)
    found = rows(reader)
    assert len(found) == len(stated) == 24
    assert same([r.reward for r in found], [s["score"] for s in stated])
    assert Counter(r.step for r in found) == Counter(s["step"] for s in stated)
    assert Counter(Counter(r.group for r in found).values()) == {4: 6}
    assert all(r.advantage is None and r.tokens is None for r in found)
    assert [r.turns for r in found[:4]] == [3, 1, 3, 1]
    if folder.endswith("v0"):
        assert [r.correct for r in found] == [s["acc"] for s in stated]
        assert same([r.extra.get("component.format") for r in found], [s["format"] for s in stated])


def test_the_total_is_checked_where_weights_are_known(opened: Open):
    record = opened("verl/rollout_v0").bodies.trajectory(1)
    assert all(v.weight is None and v.contribution is None for v in record.breakdown.steps[-1].components.values())  # type: ignore[union-attr]
    assert "weight" in record.unknown and "advantage" in record.unknown


@pytest.mark.parametrize(
    ("path", "count", "rewards"),
    [
        ("generic/openai-messages.jsonl", 24, True),
        ("generic/openai-responses.jsonl", 8, True),
        ("generic/prompt-completion.jsonl", 24, True),
        ("generic/groups.jsonl", 24, True),
        ("generic/sharegpt.json", 8, False),
        ("generic/ms-swift/completions.jsonl", 24, False),
    ],
)
def test_generic(opened: Open, path: str, count: int, rewards: bool):
    found = rows(opened(path))
    assert len(found) == count
    assert [r.turns for r in found[:3]] == [3, 1, 3]
    assert found[0].actions == ("segment_object_at", "get_properties", "(text)")
    assert found[0].reward == (1.0970000000000002 if rewards else None)
    assert len({r.group for r in found}) == (6 if found[0].step is not None else 2)


def test_a_pickle_is_refused_in_one_sentence():
    with pytest.raises(DumpError, match="pickle"):
        open_dump(PEERS / "slime", whole=True)


def test_verifiers(opened: Open):
    stated = [t for e in lines("verifiers-v1") for t in e["traces"]]
    reader = opened("verifiers-v1")
    found = {r.id: r for r in rows(reader)}
    assert len(found) == len(stated) == 24
    for trace in stated:
        row, parts = found[trace["id"]], [r for r in trace["rewards"].values() if r]
        scores = [r["score"] for r in parts]
        expected = None if None in scores or not parts else sum(r["score"] * r["weight"] for r in parts)
        assert row.reward == (None if expected is None else pytest.approx(expected))
        assert row.turns == sum(n["message"]["role"] == "assistant" for n in trace["nodes"])
    assert len(rows_of(reader, "error")) == sum(bool(t["errors"]) for t in stated) == 1
    last = reader.bodies.trajectory(1).breakdown.steps[-1]  # type: ignore[union-attr]
    assert sum(v.contribution or 0.0 for v in last.components.values()) == pytest.approx(last.total)


def rows_of(reader: RunReader, filter: str) -> list[TrajectoryRow]:
    return reader.rollouts.page(Query(filter=filter), limit=1000)


def test_prime_rl_in_both_layouts(opened: Open):
    old, new = opened("prime-rl/until-2026-08"), opened("prime-rl/since-2026-09")
    assert [r.reward for r in rows(old)] == [r.reward for r in rows(new)]
    episodes = {json.dumps(e["id"]) for e in lines("prime-rl/until-2026-08", "rollouts/**/all/*.jsonl")}
    assert len(rows(old)) == len(rows(new)) == len(episodes) == 24, "an effective episode stands twice, and counts once"
    effective = lines("prime-rl/until-2026-08", "rollouts/**/effective/*.jsonl")
    assert len(rows_of(old, "extra.effective=1")) == len(effective) == 22
    index = {t: r for r in lines("prime-rl/since-2026-09", "**/stream.index.jsonl") for t in r["trace_ids"]}
    said = {a["trace_id"]: a["info"] for a in lines("prime-rl/since-2026-09", "**/orch.index.jsonl")}
    for row in rows(new):
        assert (row.group, row.turns) == (index[row.id]["group"], index[row.id]["turns"])
        assert row.advantage == said.get(row.id, {}).get("advantage")
    tokens = new.bodies.tokens(1)
    assert tokens is not None and tokens.advantages is not None and any(tokens.agent_mask)
    assert len(rows_of(new, "advantage>1")) == sum((i.get("advantage") or 0) > 1 for i in said.values())


def test_verifiers_before_0_4(opened: Open):
    stated = lines("verifiers-v0")
    reader = opened("verifiers-v0")
    found = rows(reader)
    assert same([r.reward for r in found], [s["reward"] for s in stated])
    assert len(rows_of(reader, "error")) == sum(s["error"] is not None for s in stated)
    assert same([r.extra.get("component.format") for r in found], [s["metrics"].get("format") for s in stated])
    assert len({r.group for r in found}) == 6 and {r.step for r in found} == {1, 2, 3}


def test_inspect_ai_packed_with_zstd_and_plain(opened: Open):
    reader = opened("inspect-ai")
    found = rows(reader)
    plain = json.loads(next(PEERS.glob("inspect-ai/*.json")).read_text())["samples"]
    assert len(found) == 24 and len({r.group for r in found}) == 6
    third = [r for r in found if r.step == 3]
    assert same([r.extra.get("component.length") for r in third], [s["scores"]["length"]["value"] for s in plain])
    assert [r.turns for r in third] == [sum(m["role"] == "assistant" for m in s["messages"]) for s in plain]
    assert all(r.reward is None for r in found)


def test_atif_with_the_results_beside_it(opened: Open):
    reader = opened("atif")
    found = {r.id: r for r in rows(reader)}
    results = [json.loads(p.read_text()) for p in PEERS.glob("atif/*/*/result.json")]
    assert len(found) == len(results) == 24
    for result in results:
        stated = (result["verifier_result"] or {}).get("rewards") or {}
        row = found[result["trial_name"]]
        assert {k: v for k, v in row.extra.items() if k.startswith("component.") and v is not None} == {
            f"component.{k}": v for k, v in stated.items() if v is not None
        }
    assert len(rows_of(reader, "error")) == sum(bool(r["exception_info"]) for r in results) == 1


def test_art(opened: Open):
    from pyarrow import parquet

    stated = [r for p in sorted(PEERS.glob("art/**/*.parquet")) for r in parquet.read_table(p).to_pylist()]
    found = rows(opened("art"))
    assert len(found) == len(stated) == 23, "ART leaves out what ended in an exception"
    assert same([r.reward for r in found], [r["reward"] for r in stated])
    assert {r.group for r in found} == {json.loads(r["group_metadata"])["group"] for r in stated}


def test_nemo_rl(opened: Open):
    stated = lines("nemo-rl")
    reader = opened("nemo-rl")
    assert same([r.reward for r in rows(reader)], [s["rewards"][0] for s in stated])
    assert Counter(r.split for r in rows(reader)) == {"train": 24, "eval": 4}
    tokens = reader.bodies.tokens(1)
    assert tokens is not None and list(tokens.token_ids) == stated[0]["token_ids"][0]
    said = [sum("<tool_call>" in text or "answer>" in text for text in s["content"][0]) for s in stated[:1]]
    assert [len(reader.bodies.trajectory(1).trajectory.steps)] == said == [3], "its mask joins all turns"


def test_trackio(opened: Open):
    import sqlite3

    db = sqlite3.connect(PEERS / "trackio/visual.db")
    stated = [json.loads(m) for (m,) in db.execute("SELECT metadata FROM traces")]
    db.close()
    reader = opened("trackio")
    assert same([r.reward for r in rows(reader)], [number(s["reward"]) for s in stated])
    assert {r.group for r in rows(reader)} == {s["group"] for s in stated}
    assert dict(reader.metrics.points("kl")) == {1: 0.01, 2: 0.02, 3: 0.03}


def number(value: object) -> float | None:
    return None if value is None else float(value)  # type: ignore[arg-type]


def test_rllm(opened: Open):
    stated = [json.loads(p.read_text()) for p in PEERS.glob("rllm/**/*.json")]
    reader = opened("rllm")
    found = {r.id: r for r in rows(reader)}
    for episode in stated:
        row = found[episode["episode_id"]]
        assert same([row.reward], [episode["trajectories"][0]["reward"]])
        assert row.turns == episode["trajectories"][0]["num_steps"]
    assert len(rows_of(reader, "error")) == sum(e["termination_reason"] == "error" for e in stated)


def test_tinker_cookbook(opened: Open):
    stated = lines("tinker-cookbook", "**/*summaries.jsonl")
    reader = opened("tinker-cookbook")
    assert same([r.reward for r in rows(reader)], [s["total_reward"] for s in stated])
    assert len(rows_of(reader, "error")) == sum(any("error" in t["logs"] for t in s["steps"]) for s in stated)


def test_open_telemetry(opened: Open):
    found = rows(opened("otel"))
    assert len(found) == 12 and len({r.group for r in found}) == 3
    assert [r.turns for r in found[:4]] == [3, 1, 3, 1]


def test_the_texts_of_tinkers_logtree(opened: Open):
    tree = json.loads((PEERS / "tinker-cookbook/iteration_000000/train_logtree.json").read_text())

    def said(node: Any) -> Iterable[dict[str, Any]]:
        if isinstance(node, dict):
            if (node.get("data") or {}).get("type") == "conversation":
                yield from node["data"]["messages"]
            for child in node.get("children", []):
                yield from said(child)

    messages = list(said(tree["root"]))
    reader = opened("tinker-cookbook")
    group = [r for r in rows(reader) if r.step == 0 and r.group == "train:0:0"]
    shown = [reader.bodies.trajectory(r.n) for r in group]
    assert len(shown) == 4 and {s.trajectory.prompt for s in shown} == {
        m["content"] for m in messages if m["role"] == "user"
    }
    answers = [c.result for s in shown for step in s.trajectory.steps for c in step.calls if c.result is not None]
    assert answers == [m["content"] for m in messages if m["role"] == "tool"]
    assert "prompt" not in shown[0].unknown
    other = next(r for r in rows(reader) if r.step == 1)
    assert "prompt" in reader.bodies.trajectory(other.n).unknown, "the logtree holds some groups only"


def test_mini_swe_agent(opened: Open):
    stated = {d["instance_id"]: d for p in PEERS.glob("mini-swe-agent/*/*.json") if (d := json.loads(p.read_text()))}
    reader = opened("mini-swe-agent")
    found = {r.id: r for r in rows(reader)}
    assert found.keys() == stated.keys() and len(found) == 24
    for id_, document in stated.items():
        agent = [m for m in document["messages"] if m["role"] == "assistant"]
        codes = [m["extra"].get("returncode") for m in document["messages"] if m["role"] == "tool"]
        assert found[id_].turns == len(agent) and found[id_].reward is None and found[id_].advantage is None
        assert found[id_].answer == (document["info"]["submission"] or None)
        calls = ["bash" for m in agent for _ in m.get("tool_calls") or m["extra"].get("actions") or []]
        assert [a for a in found[id_].actions if a != "(text)"] == calls
        shown = reader.bodies.trajectory(found[id_].n).trajectory
        assert sum(step.error is not None for step in shown.steps) >= sum(c not in (None, 0) for c in codes)
        assert found[id_].extra["api_calls"] == document["info"]["model_stats"]["api_calls"]


def test_swe_agent(opened: Open):
    stated = {p.stem: json.loads(p.read_text()) for p in PEERS.glob("swe-agent/*/*.traj")}
    reader = opened("swe-agent")
    found = {r.id: r for r in rows(reader)}
    assert found.keys() == stated.keys() and len(found) == 11
    for id_, document in stated.items():
        row, shown = found[id_], reader.bodies.trajectory(found[id_].n).trajectory
        assert row.turns == len(document["trajectory"]) and row.reward is None
        assert row.answer == (document["info"].get("submission") or None)
        assert row.stop_reason == (document["info"]["exit_status"] or "")
        assert [s.observation for s in shown.steps] == [t["observation"] for t in document["trajectory"]]


def test_agentlightning(opened: Open):
    stated = []
    for path in sorted(PEERS.glob("agentlightning/*/*.zip")):
        with zipfile.ZipFile(path) as archive:
            text = archive.read("train_trajectories.jsonl").decode()
        stated += [(int(path.parent.name.removeprefix("step_")), json.loads(t)) for t in text.split("\n") if t]
    found = rows(opened("agentlightning"))
    assert len(found) == len(stated) == 24
    assert same([r.reward for r in found], [s["reward"] for _, s in stated])
    assert Counter(r.step for r in found) == Counter(step for step, _ in stated)
    assert {r.id for r in found} == {s["rollout_id"] for _, s in stated}
    assert all(r.turns is not None and r.turns <= 1 for r in found), "the last turn only"


def test_areal(opened: Open):
    stated = lines("areal")
    found = rows(opened("areal"))
    assert len(found) == len(stated) == 24
    assert same([r.reward for r in found], [s["reward"] for s in stated])
    assert Counter(r.group for r in found) == Counter(str(s["task_id"]) for s in stated)
    assert [r.tokens for r in found] == [s["seqlen"] for s in stated]
    assert [r.policy_version for r in found] == [s["tail_version"] for s in stated]


def test_openenv(opened: Open):
    stated = {s["episode_id"]: s for s in lines("openenv")}
    reader = opened("openenv")
    found = {r.id: r for r in rows(reader)}
    assert found.keys() == stated.keys() and len(found) == 24
    for id_, episode in stated.items():
        row = found[id_]
        assert same([row.reward], [episode["reward"]])
        assert row.turns == sum(m["role"] == "assistant" for m in episode["messages"])
        assert components(reader.bodies.trajectory(row.n)).keys() == episode["verify_metrics"].keys()
        for name, value in episode["verify_metrics"].items():
            assert same([row.extra.get(f"component.{name}")], [value])


def test_wandb_tables(opened: Open):
    stated = [
        dict(zip(table["columns"], row, strict=True))
        for path in sorted(PEERS.glob("wandb/**/*.table.json"))
        for table in [json.loads(path.read_text())]
        for row in table["data"]
    ]
    stated = [s for s in stated if "completion" in s]
    found = rows(opened("wandb"))
    assert len(found) == len(stated)
    assert Counter(r.step for r in found) == Counter(s["step"] for s in stated)
    assert same([r.advantage for r in found], [number(s["advantage"]) for s in stated])
    for name in ("correct", "format", "length"):
        assert same([r.extra.get(f"component.{name}") for r in found], [number(s[name]) for s in stated])
    assert all(r.reward is None for r in found)


def test_what_is_not_recorded_is_unknown_and_no_zero(opened: Open):
    for folder in ("trl", "verl/rollout", "mini-swe-agent", "verifiers-v0"):
        reader = opened(folder)
        assert {r.policy_version for r in rows(reader)} == {None}
        assert reader.bodies.trajectory(1).policy_version is None


def test_a_reward_a_token_is_summed(opened: Open):
    stated = [json.loads(t) for p in sorted(PEERS.glob("skyrl/**/visual*.jsonl")) for t in p.open()]
    totals = [sum(s["score"]) if isinstance(s["score"], list) else s["score"] for s in stated]
    assert same([r.reward for r in rows(opened("skyrl"))], totals)


@pytest.mark.parametrize("folder", sorted(p.name for p in PEERS.iterdir() if p.is_dir() and p.name != "slime"))
def test_every_sample_opens_whole_on_the_command_line(folder: str, capsys: pytest.CaptureFixture[str]):
    from grpo_tui.tui.cli.main import run

    assert run(["inspect", str(PEERS / folder), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["trajectories"] > 0 and summary["run"]["mode"] == "dump"
    assert run(["inspect", str(PEERS / folder), "--filter", "", "--json"]) == 0
    listed = [json.loads(t) for t in capsys.readouterr().out.splitlines()]
    assert len(listed) == summary["trajectories"]
    assert run(["inspect", str(PEERS / folder), "--trajectory", "1", "--json"]) == 0
    assert "not_recorded" in json.loads(capsys.readouterr().out)


def test_everything_in_one_folder_is_told_apart(opened: Open):
    reader = opened(PEERS)
    formats = reader.info().facts["formats"]
    assert {"TRL completions", "verl rollouts", "verifiers episodes", "inspect-ai samples"} <= formats.keys()
    assert reader.rollouts.total() > 500


def test_what_the_trainer_computed_of_each_token(opened: Open):
    """prime-rl's trainer annotations and NeMo-RL's `prev_logprobs`, beside the sampler's log-probs."""
    said = {a["trace_id"]: a["branches"][-1] for a in lines("prime-rl/since-2026-09", "**/annotations/trainer/*.jsonl")}
    reader = opened("prime-rl/since-2026-09")
    checked = 0
    for row in rows(reader):
        tokens, stated = reader.bodies.tokens(row.n), said.get(row.id)
        if tokens is None or stated is None or len(stated["trainer_logprobs"]) != len(tokens):
            continue
        for name, key in (("trainer", "trainer_logprobs"), ("entropy", "entropies")):
            for found, value, agent in zip(tokens.overlays[name], stated[key], tokens.agent_mask, strict=True):
                assert math.isnan(found) if value is None or not agent else found == pytest.approx(value, abs=1e-6)
        checked += 1
    assert checked >= 20
    reader = opened("nemo-rl")
    stated = lines("nemo-rl")[0]
    tokens = reader.bodies.tokens(1)
    assert tokens is not None and tokens.overlays.keys() == {"trainer"}
    for found, value, agent in zip(
        tokens.overlays["trainer"], stated["prev_logprobs"][0], tokens.agent_mask, strict=True
    ):
        assert math.isnan(found) if not agent else found == pytest.approx(value, abs=1e-6)


def test_verifiers_rollouts_took_the_seconds_between_their_times(opened: Open):
    traces = [t for episode in lines("verifiers-v1") for t in episode["traces"]]
    stated = [t["timing"]["agent"]["end"] - t["timing"]["start"] for t in traces]
    reader = opened("verifiers-v1")
    assert same([reader.bodies.trajectory(row.n).trajectory.seconds for row in rows(reader)], stated)
    assert min(stated) > 0


def test_log_probs_of_sampled_tokens_stand_in_their_places():
    """A writer gives one for each token, or one for each that the policy wrote."""
    prompt = {"token_ids": [5, 6], "mask": [False, False], "logprobs": []}
    mixed = {"token_ids": [7, 8, 9], "mask": [True, False, True], "logprobs": [-0.5, -1.5]}
    each = {"token_ids": [1, 2], "mask": [False, True], "logprobs": [0.0, -2.5]}
    tokens = tokens_of_nodes([prompt, mixed, each])
    assert tokens is not None
    assert list(tokens.logprobs) == [0.0, 0.0, -0.5, 0.0, -1.5, 0.0, -2.5]
    assert list(tokens.agent_mask) == [0, 0, 1, 0, 1, 0, 1]
