"""Run rldoctor 0.2.0 and rlprobe 0.1.0 on the same records, in the form that TRL logs.

    pip install --target /tmp/diagnosis --no-deps rldoctor==0.2.0 rlprobe==0.1.0
    PYTHONPATH=$PYTHONPATH:/tmp/diagnosis python -m benchmarks.diagnosis evaluate

Both read only scalars. Each of their signatures counts as the cause for every fault that it could mean.
"""

from __future__ import annotations

import importlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from grpo_tui.configs import metric_names as metric
from grpo_tui.engine.runs.read.reader import RunReader

NAMES = {
    metric.LOSS: "loss",
    metric.GRAD_NORM: "grad_norm",
    metric.LEARNING_RATE: "learning_rate",
    metric.ENTROPY: "entropy",
    metric.CLIP_FRACTION: "clip_ratio/region_mean",
    metric.KL_MEAN: "kl",
    metric.SUCCESS_SAMPLED: "eval/accuracy",
}
"""Our names and TRL's. Those under `trl/` are TRL's own."""
FLAT = ("constant_reward", "rejected_answers", "no_diversity", "advantage_scale", "few_tasks")
LEAVES = ("kl_rise", "kl_sign")
PAYS = ("reward_hack", "accepted_without_answer", "length_reward", "repetition", "one_answer")


@dataclass(frozen=True)
class Other:
    """Another program. look: returns its warnings for the rows of a run. means: the causes of each signature."""

    module: str
    look: Callable[[Sequence[Mapping[str, float]]], list[str]]
    means: Mapping[str, Sequence[str]]

    def __call__(self, reader: RunReader) -> list[str]:
        return self.look(_rows(reader))

    def names(self, warnings: Sequence[str], causes: Sequence[str]) -> bool:
        """Return whether one of the warnings names one of the causes."""
        return any(cause in causes for warning in warnings for cause in self.means.get(warning, ()))


def _rows(reader: RunReader) -> list[dict[str, float]]:
    rows: dict[int, dict[str, float]] = defaultdict(dict)
    for name in reader.metrics.names():
        known = NAMES.get(name) or (metric.TRL.part(name) if name in metric.TRL else "")
        for step, value in reader.metrics.points(name) if known else ():
            rows[step][known] = value
    return [{"step": step, **rows[step]} for step in sorted(rows) if step > 0]


def _rldoctor(rows: Sequence[Mapping[str, float]]) -> list[str]:
    doctor: Any = importlib.import_module("rl_doctor")
    found = doctor.diagnose(doctor.run_from_records([dict(row) for row in rows]))
    return [f.detector for f in found.problems if f.severity >= doctor.Severity.WARNING]


def _rlprobe(rows: Sequence[Mapping[str, float]]) -> list[str]:
    trl: Any = importlib.import_module("rlprobe.integrations.trl")
    schemas: Any = importlib.import_module("rlprobe.schemas")
    engine: Any = importlib.import_module("rlprobe.doctor.engine")
    view: Any = importlib.import_module("rlprobe.doctor.runview")
    steps = [schemas.StepRecord(step=int(row["step"]), **trl._map_logs({**row})) for row in rows]
    manifest = schemas.RunManifest(run_id="run", created_at="2026-01-01T00:00:00", algorithm="grpo")
    return [f.signature_id for f in engine.diagnose_view(view.RunView(manifest, steps)) if f.severity != "info"]


_KNOWN = {
    "rldoctor": Other(
        "rl_doctor",
        _rldoctor,
        {
            "advantage_collapse": FLAT,
            "entropy_collapse": ("entropy_collapse",),
            "reward_hacking": PAYS,
            "length_pathology": ("length_reward", "truncation"),
            "clip_saturation": ("clipped", "sampler_mismatch"),
            "kl_drift": LEAVES,
            "gradient_pathology": LEAVES,
            "reward_composition": PAYS,
        },
    ),
    "rlprobe": Other(
        "rlprobe",
        _rlprobe,
        {
            "KL_BLOWUP": LEAVES,
            "ENTROPY_COLLAPSE": ("entropy_collapse",),
            "REWARD_HACK_LENGTH": ("length_reward",),
            "FORMAT_GAMING": PAYS,
            "CLIP_SATURATION": ("clipped", "sampler_mismatch"),
            "DEGENERATE_GROUPS": FLAT,
            "ADV_COLLAPSE": FLAT,
            "GRAD_PATHOLOGY": LEAVES,
            "TRUNCATION_STARVE": ("truncation",),
            "REPETITION_SPIRAL": ("repetition",),
            "REWARD_STD_DEATH": FLAT,
            "REF_POLICY_DRIFT_ASYMMETRY": LEAVES,
        },
    ),
}
OTHERS = {name: other for name, other in _KNOWN.items() if find_spec(other.module) is not None}
"""The installed ones."""
