"""Send alerts of a run to the user's command or webhook.

Training only puts an alert into a queue, and a thread sends it. The thread sends at most one message per
`every_seconds`. Further alerts wait and become one message with the most severe alert and the number of others. The
same alert is not repeated within an hour. A command or webhook that fails or hangs is logged once, without other
effects. Commands run without a shell and read the alert as JSON from standard input. Model text is never an argument.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from ..masking import mask

log = logging.getLogger(__name__)

Severity = Literal["failure", "warning", "hint"]
SEVERITIES: tuple[Severity, ...] = ("failure", "warning", "hint")
TIMEOUT_SECONDS = 10.0
"""The timeout of a command or webhook."""
AGAIN_SECONDS = 3600.0
WAITING = 200
"""The maximum number of waiting alerts. Further alerts are only counted."""


@dataclass(frozen=True)
class AlertDestination:
    """Where to send alerts. command: program and arguments. severities: the severities to send."""

    command: Sequence[str] = ()
    webhook: str = ""
    severities: Sequence[Severity] = ("failure", "warning")
    every_seconds: float = 60.0


@dataclass(frozen=True)
class Alert:
    """One alert to send: a sentence, advice, and the rollouts that show the problem."""

    run: str
    folder: str
    step: int
    severity: Severity
    message: str
    suggestion: str = ""
    detector: str = ""
    trajectories: tuple[str, ...] = ()
    more: int = 0
    """The number of other alerts since the last message."""

    def to_json(self) -> dict[str, object]:
        """Return the JSON for commands and webhooks. Chat programs show `text` and `content`."""
        others = f" (and {self.more} more)" if self.more else ""
        text = f"{self.severity}: {self.run}, step {self.step}: {self.message}{others}"
        text += f" What helps: {self.suggestion}" if self.suggestion else ""
        return mask({**asdict(self), "trajectories": list(self.trajectories), "text": text, "content": text[:1900]})


class AlertSender:
    """Sends the alerts of one run from a thread that ends with the process. `close` sends the waiting alerts within a
    time limit."""

    def __init__(self, run_dir: Path, destination: AlertDestination) -> None:
        self.run_dir = run_dir
        self.destination = destination
        self._alerts: list[Alert] = []
        self._lost = 0
        self._sent: dict[tuple[str, str], float] = {}
        self._next = 0.0
        self._condition = threading.Condition()
        self._closing = False
        self._warned = False
        self._thread = threading.Thread(target=self._run, name="alerts", daemon=True)
        self._thread.start()

    def event(self, kind: str, message: str, step: int, data: Mapping[str, object]) -> None:
        """Queue an event of the record if it is an alert, an error or trouble with the record."""
        if kind not in ("alert", "error", "record"):
            return
        stated = data.get("severity")
        severity: Severity = "failure" if kind != "alert" else stated if stated in SEVERITIES else "warning"
        if severity not in self.destination.severities or data.get("severity") == "good":
            return
        ids = data.get("trajectories")
        shown = tuple(str(i) for i in ids[:5]) if isinstance(ids, (list, tuple)) else ()
        detector = str(data.get("detector") or "")
        key = (detector or kind, str(data.get("subject") or ("" if detector else message)))
        run, folder = self.run_dir.name, str(self.run_dir)
        alert = Alert(run, folder, step, severity, message, suggestion_of(data), detector, shown)
        with self._condition:
            now = time.monotonic()
            if now - self._sent.get(key, -AGAIN_SECONDS) < AGAIN_SECONDS:
                return
            self._sent[key] = now
            if len(self._sent) > 10_000:
                self._sent.clear()
            if len(self._alerts) < WAITING:
                self._alerts.append(alert)
            else:
                self._lost += 1
            self._condition.notify_all()

    def close(self, timeout: float = TIMEOUT_SECONDS + 2) -> None:
        with self._condition:
            self._closing = True
            self._condition.notify_all()
        self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._alerts or not (self._closing or time.monotonic() >= self._next):
                    if self._closing and not self._alerts:
                        return
                    self._condition.wait(max(0.01, self._next - time.monotonic()) if self._alerts else None)
                alerts, lost, self._alerts, self._lost = self._alerts, self._lost, [], 0
                self._next = time.monotonic() + self.destination.every_seconds
            first = min(alerts, key=lambda a: SEVERITIES.index(a.severity))
            self._send(replace(first, more=len(alerts) - 1 + lost))

    def _send(self, alert: Alert) -> None:
        body = json.dumps(alert.to_json(), default=str).encode()
        command, webhook = self.destination.command, self.destination.webhook
        for what, target, send in (("command", command, self._call), ("webhook", webhook, self._post)):
            try:
                if target:
                    send(body)
            except (OSError, ValueError, subprocess.SubprocessError) as error:
                level = logging.DEBUG if self._warned else logging.WARNING
                self._warned = True
                # a webhook's address is a secret, and error texts may contain it
                log.log(level, "alert %s failed (%s), and the run continues", what, type(error).__name__)

    def _call(self, body: bytes) -> None:
        subprocess.run(
            list(self.destination.command),
            input=body,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=TIMEOUT_SECONDS,
            check=True,
            env={**os.environ, "GRPO_TUI_RUN": str(self.run_dir)},
        )

    def _post(self, body: bytes) -> None:
        import urllib.request  # local import: most runs post nothing

        request = urllib.request.Request(
            self.destination.webhook, data=body, headers={"Content-Type": "application/json"}, method="POST"
        )
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
            answer.read(1)


SUGGESTIONS: Mapping[str, str] = {
    "advantage_share": (
        "Lower the weight of {subject}, or normalise it. Check whether the task's own reward differs within the groups."
    ),
    "reward_without_success": (
        "Read the wrong rollouts with the highest reward (they are the evidence) and lower the weight of {subject}, or "
        "reward only the task."
    ),
    "reward_hack": (
        "Read the quoted answers. Let {subject} reward only right answers, or reward form only if the answer is right."
    ),
    "kl_rise": (
        "Restart, or resume from a checkpoint before the rise, with the learning rate for the model's size (`grpo-tui "
        "config show`), a higher `training.beta`, or `beta_mode: auto`. A lower learning rate does not undo the rise."
    ),
    "no_movement": (
        "Keep the trained weights in float32, raise the learning rate to the one for the model's size (`grpo-tui "
        "config show`), and check that some parameters are trainable. Small rewards need a larger scale, or a lower "
        "`training.min_group_std`."
    ),
    "action_collapse": (
        "Raise the sampling temperature or the KL weight, and penalise repeated calls. Check whether the reward pays "
        "for this one action."
    ),
    "entropy_collapse": (
        "Lower the learning rate, raise the KL weight or the upper clip bound (`epsilon_high`), or sample at a higher "
        "temperature."
    ),
    "entropy_rise": "Lower `training.trl.entropy_coef` or the learning rate, or raise the KL weight.",
    "logprob_mismatch": (
        "Lower `rollouts.max_staleness` or the learning rate. If no rollout is stale, serve the model in the "
        "trainer's precision (`grpo-tui doctor --server URL`)."
    ),
    "sampler_mismatch": (
        "Sample with the trainer's weights and number format (`model.compute`, `model.sampling`). The token view's "
        "overlay `mismatch` shows where they differ. If the policy has hardly moved, raise the learning rate."
    ),
    "length_collapse": (
        "Check whether short answers are rewarded or long ones cut: by a length penalty, a token limit, or a loss "
        "that is averaged over sequences."
    ),
    "groups_without_variance": (
        "Use tasks that succeed sometimes, sample more rollouts per group, or replace such groups (`replay`, dynamic "
        "sampling)."
    ),
    "not_finite": (
        "Read the rollouts: did a reward function divide by zero, or get an empty answer? Return a number, or None if "
        "the reward does not apply. For a metric, lower the learning rate or clip the gradient."
    ),
    "unreadable_calls": (
        "Constrain decoding to the format of calls, show an example in the prompt, or penalise unreadable calls."
    ),
    "held_out_gap": "Read right training rollouts: would the held-out grader accept them? Then compare the tasks.",
    "random_policy": "Load the right checkpoint (the log names missing weights), and sample at temperature 1.",
    "single_prompt": "Raise `training.prompts_per_step`, so that a step has several prompts.",
    "silence_paid": "Penalise wrong answers and calls less, or missing answers more.",
    "leaked_answer": "Leave the answer out of the prompt, or out of the columns that form the prompt.",
    "prompt_gap": "Compare both prompts in `grpo-tui inspect`: is one cut, or rendered with another template?",
    "prompt_cut": "Raise the limit on prompts, or leave out longer tasks (`data.long_prompts: drop`).",
    "text_mismatch": "Decode sampled ids with the tokenizer of `model.base`. Compare both texts in `grpo-tui inspect`.",
    "paid_certainty": "Reward right answers. A policy that is rewarded for certainty becomes certain of any answer.",
    "mixed_groups": "Repeat each prompt `training.num_generations` times in a row, and group by prompt.",
    "accepted_wrong_answers": "Grade one of these answers by hand: compare whole answers, not a part of the text.",
    "noisy_reward": "Read both rollouts: make the grader deterministic, or average several of its verdicts.",
    "noisy_labels": "Read the tasks of one such prompt: are columns out of order, or prompts cut?",
    "reward_order": "Compare one rollout, its verdict and its reward: are rows out of order, or is the sign wrong?",
    "repeated_rollouts": "Sample new rollouts in each step. With several updates per batch, "
    "lower `training.trl.num_iterations`.",
    "reference_mismatch": "Load the reference from the weights that training starts from, with the same tokenizer.",
    "untrained_tokens": "Compare the mask with the text in `grpo-tui inspect`: the loss needs all agent tokens.",
    "rejected_answers": "Grade one of these answers by hand: compare its format with the one that the grader expects.",
    "accepted_without_answer": "Read the rollouts: make the grader require an answer, "
    "and give no reward for form only.",
    "constant_reward": "Call the reward function with a wrong answer: it should return less than for a right one.",
    "unanswered": (
        "Look at a prompt and its rollouts in `grpo-tui inspect`: set `model.chat_template` to the model's own, "
        "explain the answer format, or set `training.temperature` to 1."
    ),
    "advantage_order": (
        "Check the order of rollouts between rewards and advantages, the grouping, and the sign. `grpo-tui check "
        "--recompute` names the first number that differs."
    ),
    "advantage_scale": "Compare each rollout with the others of its group: `training.num_generations` above 1.",
    "few_tasks": (
        "Shuffle the data (`training.trl.shuffle_dataset`), remove duplicates from it, or let the environment make "
        "more tasks (`environment.train_tasks`)."
    ),
    "copied_prompt": "Reward what a copy of the prompt lacks, or subtract the overlap with the prompt.",
    "dead_component": "Call {subject} with a completion that it should reward. If it is a penalty, this is fine.",
    "seen_tasks": "Take held-out tasks that training does not have (`data.eval_source`, `data.eval_split`).",
    "trained_tokens": "Mask every token that the policy did not sample: the prompt and the tool results.",
    "surprising_tokens": "Train on the sampled token ids, with the tokenizer and chat template of the sampler.",
    "no_diversity": "Set `training.temperature` to 1, with `top_p` 1 and `top_k` 0.",
    "length_reward": "Reward only right answers, or subtract a soft length penalty (`overlong`).",
    "repetition": "Read the rollouts: does the reward pay for repetition? Else lower the learning rate.",
    "one_answer": "Check whether the reward accepts this answer everywhere. Else lower the learning rate.",
    "truncation": "Raise `training.max_turn_tokens` and `training.max_trajectory_tokens`, or look for the end token.",
    "clipped": "Widen `training.trl.epsilon`, or lower `training.trl.num_iterations` or the learning rate.",
    "kl_weight": "Lower `training.beta`, or use `beta_mode: auto`.",
    "errors": "Leave such rollouts out of the loss, or fix the tool: they reinforce whatever the failure rewarded.",
    "native_calls": (
        "Set `model.tool_calls: json`: the prompt then explains calls as JSON objects, which every model can write."
    ),
    "other_template": "Remove `model.chat_template`. Only a base model without its own template needs one.",
    "graded_reward": "Set `environment.success_score` to the lowest score that counts as right.",
    "kl_limit": "Lower the learning rate, or raise `online.kl.limit` if you want such large updates.",
    "environment": "Open one of these rollouts and fix the environment or the tasks. A failed request teaches nothing.",
    "validation": "Check the labels of the last updates. Raise the confidence that the gate requires.",
    "update_worker": "Read logs/worker.log. `grpo-tui online --resume RUN` continues where it stopped.",
    "serving": "Read logs/engine.log.",
}


IMPROVING = ("kl_rise", "entropy_collapse", "length_collapse")
"""Detectors whose hints say that the policy improves, so there is nothing to change."""


def suggestion(detector: str, subject: str = "", severity: str = "") -> str:
    """Return the advice for a finding; empty if there is none."""
    if severity == "good" or (severity == "hint" and detector in IMPROVING):
        return ""
    return SUGGESTIONS.get(detector, "").replace("{subject}", subject or "it")


def suggestion_of(data: Mapping[str, object]) -> str:
    """Return the advice in an event, else the advice for its detector."""
    recorded = data.get("suggestion")
    if isinstance(recorded, str):
        return recorded
    detector, subject, severity = (str(data.get(key) or "") for key in ("detector", "subject", "severity"))
    return suggestion(detector, subject, severity)
