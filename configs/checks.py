"""Checks over several keys. Each fault would otherwise fail minutes into a run, or silently have the wrong effect."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from typing import get_args

from .errors import Problem
from .schema import BUILTIN_ADAPTERS, DATASET_ENV, RunConfig
from .sections.data import holds_tasks
from .sections.environment import MCP
from .sections.training import TRL_LOSSES, Advantages
from .trl_fields import PEFT, SCHEDULE, UNUSED_BY_OWN_LOSS, fault

FILES = (".jsonl", ".json", ".csv", ".parquet")
"""Endings of the files that a dataset can be read from."""


def check_relations(config: RunConfig) -> Iterator[Problem]:
    """Find keys that contradict each other. The loader fills in `place`."""
    for check in (_training, _passed, _distillation, _model, _data, _servers, _online):
        yield from check(config)


def _training(config: RunConfig) -> Iterator[Problem]:
    t, sft = config.training, config.sft
    if t.max_turn_tokens > t.max_trajectory_tokens:
        yield Problem(
            "training.max_turn_tokens",
            f"one turn may take {t.max_turn_tokens} tokens but a whole trajectory only {t.max_trajectory_tokens}",
            f"at most {t.max_trajectory_tokens}, or raise training.max_trajectory_tokens",
        )
    rows = t.prompts_per_step * t.num_generations
    of_step = f"rows of a step ({t.prompts_per_step} prompts × {t.num_generations} generations)"
    for key, size, total, what in (
        ("training", t.micro_batch_size, rows, of_step),
        ("sft", sft.micro_batch_size, sft.batch_size, "conversations of a step (sft.batch_size)"),
    ):
        if size is not None and total % size:  # TRL would silently drop the remainder
            divisors = [d for d in range(1, total + 1) if total % d == 0]
            nearest = min(divisors, key=lambda d, size=size: abs(math.log(d / size)))
            yield Problem(
                f"{key}.micro_batch_size",
                f"{size} does not divide the {total} {what}",
                f"nearest that does: {nearest}; or null for as many as fit",
            )
    if t.fresh is not None and t.fresh > t.num_generations:
        yield Problem(
            "training.tree.fresh",
            f"{t.fresh} of the {t.num_generations} rollouts of a group cannot start at the prompt",
            f"at most {t.num_generations}, or null for half",
        )
    if t.tree.fresh is not None and t.advantages in get_args(Advantages) and t.advantages != "tree":
        wrong = f"rollouts branch with advantages: tree, and training.advantages is {t.advantages}"
        yield Problem("training.tree.fresh", wrong, "null, or training.advantages: tree")
    if os.path.normpath(sft.output_dir) == os.path.normpath(t.output_dir):
        yield Problem(
            "training.output_dir",
            f"the same folder as sft.output_dir ({sft.output_dir}), so one phase would overwrite the other's adapters",
            "two different folders",
        )


def _passed(config: RunConfig) -> Iterator[Problem]:
    """Check the fields that go to TRL and PEFT."""
    training, lora = config.training, config.model.lora
    for key in training.trl:
        if found := fault(key):
            yield Problem(f"training.trl.{key}", *found)
    for key in config.sft.trl:
        if key not in SCHEDULE:
            yield Problem(f"sft.trl.{key}", "sft.trl does not take this", f"fields of sft.trl: {', '.join(SCHEDULE)}")
    peft = {} if lora is None else lora.peft
    for key in peft:
        if key not in PEFT:
            yield Problem(f"model.lora.peft.{key}", "PEFT does not get this field", f"fields: {', '.join(PEFT)}")
    if peft.get("init_lora_weights", True) not in (True, "gaussian", "orthogonal"):
        yield Problem(
            "model.lora.peft.init_lora_weights",
            "this changes the base model, which the KL penalty compares with",
            "true, gaussian or orthogonal",
        )
    if peft.get("use_dora") and config.rollouts.engine == "vllm":
        yield Problem("model.lora.peft.use_dora", "vLLM does not serve DoRA", "use_rslora, or engine: transformers")
    for key in UNUSED_BY_OWN_LOSS if training.loss_type not in TRL_LOSSES else ():
        if training.trl.get(key) is not None:
            wrong = f"training.loss_type: {training.loss_type} does not use it"
            yield Problem(f"training.trl.{key}", wrong, f"one of TRL's losses: {', '.join(TRL_LOSSES)}")
    if training.max_steps is not None and "num_train_epochs" in training.trl:
        yield Problem(
            "training.trl.num_train_epochs",
            f"training.max_steps is {training.max_steps}, which sets the length of the run",
            "training.max_steps: null",
        )
    if training.trl.get("sync_ref_model") and (lora is not None or training.beta == 0):
        yield Problem(
            "training.trl.sync_ref_model",
            "the reference is a copy only if all weights are trained with a KL penalty",
            "model.lora: null and training.beta above 0",
        )
    for key in ("num_train_epochs", "num_iterations"):
        value = training.trl.get(key, 1)
        if not isinstance(value, (int, float)) or value <= 0:
            yield Problem(f"training.trl.{key}", f"{value!r} is not a number above 0", "a number such as 1")
    rows = training.prompts_per_step * training.num_generations
    batch, times = training.trl.get("generation_batch_size") or rows, training.trl.get("num_iterations", 1)
    if not isinstance(batch, int) or batch <= 0 or batch % rows:
        yield Problem(
            "training.trl.generation_batch_size",
            f"{batch} rollouts are not a whole number of steps of {rows}",
            f"a multiple of {rows}",
        )
    elif (batch != rows or times != 1) and config.rollouts.max_staleness:
        yield Problem(
            "rollouts.max_staleness",
            "each batch serves several updates, so its rollouts are off-policy already",
            "0, or neither training.trl.num_iterations nor generation_batch_size",
        )


def _distillation(config: RunConfig) -> Iterator[Problem]:
    training = config.training
    if training.distillation.teacher is None:
        return
    if training.advantages == "reward" and training.distillation.with_reward:
        yield Problem(
            "training.distillation.with_reward",
            "advantages: reward places each reward on one token, and the teacher scores every token",
            "false, or another method of training.advantages",
        )
    if training.distillation.teacher.startswith(("http://", "https://")) and training.temperature != 1:
        yield Problem(
            "training.temperature", f"a server scores at temperature 1, but this is {training.temperature:g}", "1"
        )


def _model(config: RunConfig) -> Iterator[Problem]:
    m = config.model
    if (m.sft_adapters or "").startswith("builtin:") and m.sft_adapters != BUILTIN_ADAPTERS.get(m.base):
        yield Problem(
            "model.sft_adapters",
            f"{m.sft_adapters} fits only the built-in policy of the same name, but model.base is {m.base}",
            "null to start from the bare base model, or the folder that `--mode sft` wrote",
        )
    if m.quantization is not None and m.lora is None:
        yield Problem("model.quantization", "4-bit weights cannot be trained, only adapters on them", "set model.lora")
    if config.mode == "online" and m.lora is None:
        yield Problem("model.lora", "null means no adapters, but learning while serving updates them", "r, alpha, …")
    if m.quantization is not None and m.device in ("cpu", "mps"):
        yield Problem(
            "model.quantization",
            f"{m.quantization} needs a CUDA GPU, and model.device is {m.device}",
            "null, or device: cuda",
        )
    for key in ("weights", "compute", "sampling"):
        if m.device == "cpu" and getattr(m, key) == "float16":
            yield Problem(
                f"model.{key}", "a CPU computes float16 about ten times slower than float32", "float32 or bfloat16"
            )


def _data(config: RunConfig) -> Iterator[Problem]:
    data, environment = config.data, config.environment
    if data.pass_rates is not None and data.sampler != "difficulty":
        yield Problem("data.pass_rates", f"data.sampler: {data.sampler} does not use it", "data.sampler: difficulty")
    if holds_tasks(data.source):
        for key in ("prompt", "prompt_template", "system_prompt", "answer"):
            if getattr(data, key) is not None:
                yield Problem(
                    f"data.{key}", f"this is for prompts, but {data.source} contains environment tasks", "leave it out"
                )
    if environment.reward_funcs and config.mode == "sft":
        yield Problem(
            "environment.reward_funcs",
            "reward functions score rollouts, and nothing calls them in mode sft",
            "leave them out, or train with --mode rft",
        )
    if environment.tools and environment.class_path != DATASET_ENV:
        yield Problem(
            "environment.tools",
            f"{environment.class_path} defines its own tools; function tools are only for datasets",
            "leave it out, or set data.source",
        )
    if data.source is None and (data.eval_source is not None or data.prompt_template is not None):
        key = "eval_source" if data.eval_source is not None else "prompt_template"
        yield Problem(f"data.{key}", "this is for a dataset, but data.source is not set", "set data.source")
    conversations = data.source is not None and environment.class_path == DATASET_ENV and config.mode == "rft"
    if conversations and environment.reward_funcs and not any(environment.reward_funcs.values()) and not data.answer:
        yield Problem(
            "environment.reward_funcs",
            "every weight is 0, so all answers get the same reward",
            "a nonzero weight for at least one function",
        )
    if conversations and not environment.reward_funcs and data.answer is None:
        yield Problem(
            "environment.reward_funcs",
            "no reward is configured",
            "name a reward function (`--reward rewards.py:accuracy`), or set data.answer to the column of answers",
        )


def _online(config: RunConfig) -> Iterator[Problem]:
    online = config.online
    if config.mode == "online" and (others := set(config.logging.report_to) - {"wandb"}):
        yield Problem("logging.report_to", f"learning while serving reports to wandb, not to {min(others)}", "[wandb]")
    if online.is_shared and online.shared_files is None:
        yield Problem(
            "online.shared_files",
            "null, but machines that share a queue exchange snapshots and states",
            "a folder that all of them see, or a URL such as s3://BUCKET/FOLDER",
        )


def _servers(config: RunConfig) -> Iterator[Problem]:
    """Check settings that rollouts on servers require or exclude."""
    r, t = config.rollouts, config.training
    if r.correction_floor >= r.correction_cap:
        yield Problem("rollouts.correction_floor", "it must be below correction_cap", f"less than {r.correction_cap:g}")
    if r.steps_ahead is not None and r.steps_ahead > r.max_staleness:
        yield Problem(
            "rollouts.steps_ahead",
            "rollouts generated this early would be too old",
            f"at most max_staleness ({r.max_staleness})",
        )
    if r.engine == "transformers":
        if r.servers:
            yield Problem(
                "rollouts.servers", "servers are given, but rollouts.engine is transformers", "rollouts.engine: vllm"
            )
        if r.max_staleness:
            yield Problem(
                "rollouts.max_staleness",
                "only servers can generate rollouts of later steps during training",
                "0, or rollouts.engine: vllm",
            )
        return
    if config.mode == "sft":
        yield Problem("rollouts.engine", "mode sft generates no rollouts", "transformers")
    if not r.servers:
        yield Problem("rollouts.servers", "no server is given", "addresses such as [http://127.0.0.1:8000]")
    for url in r.servers:
        if not re.fullmatch(r"https?://[^/\s]+(/\S*)?", url):
            yield Problem("rollouts.servers", f"{url} is not a server address", "such as http://127.0.0.1:8000")
    if len(set(r.servers)) < len(r.servers):
        yield Problem("rollouts.servers", "a server is listed twice", "each server once")
    if config.model.lora is None:
        yield Problem("model.lora", "null trains all weights, but servers get adapters only", "r, alpha, …")
    for key, neutral in (("top_p", 1.0), ("top_k", 0), ("min_p", 0.0), ("repetition_penalty", 1.0)):
        value = getattr(t, key)
        if value != neutral and config.mode == "rft":
            yield Problem(
                f"training.{key}",
                f"{value}, but then servers report log-probs over the remaining tokens only, and training uses all "
                "tokens",
                f"{neutral:g} with rollouts.engine: vllm",
            )


def check_paths(config: RunConfig) -> Iterator[Problem]:
    """Find files and folders that are named but missing. Not for the stored configuration of an old run."""
    if config.seed >= 2**32 and config.mode in ("sft", "rft"):
        yield Problem("seed", f"{config.seed} is too large for NumPy", "at most 4294967295")
    serve = config.online.serve
    port = re.fullmatch(r"[^/]*:(\d{1,5})", serve or ":0")
    if config.mode == "online" and (port is None or int(port[1]) > 65535):
        yield Problem("online.serve", f"{serve!r} is not HOST:PORT with a port up to 65535", "such as 127.0.0.1:8000")
    base, adapters, template = config.model.base, config.model.sft_adapters, config.model.chat_template
    rewards, environment = config.rewards, config.environment
    paths = [
        ("sft.data", config.sft.data if config.mode == "sft" else None),
        ("model.base", base if base.startswith((".", "/", "~")) or not base.strip() else None),
        ("model.sft_adapters", None if config.mode == "sft" or (adapters or "").startswith("builtin:") else adapters),
        ("model.chat_template", None if template == "chatml" else template),
    ]
    code = [("environment.class_path", environment.class_path)]
    code += [(f"rewards.penalty_rules.{i}.class_path", r.class_path) for i, r in enumerate(rewards.penalty_rules)]
    extra = rewards.extra_components
    code += [(f"rewards.extra_components.{name}.class_path", c.class_path or "") for name, c in extra.items()]
    code += [("environment.reward_funcs", path) for path in environment.reward_funcs]
    code += [("environment.tools", path) for path in environment.tools if not path.startswith(MCP)]
    paths += [(key, file) for key, path in code if (file := path.rpartition(":")[0]).endswith(".py")]
    paths += [(f"data.{key}", getattr(config.data, key)) for key in ("source", "eval_source")]
    start = f"relative paths start in {os.getcwd()}"
    rights = {
        "model.chat_template": f"chatml, or a file with a Jinja template; {start}",
        "model.sft_adapters": "the folder that `grpo-tui train --mode sft` wrote, or null; hub ids are not supported",
    }
    for key, path in paths:
        if path is None or (key.startswith("data.") and path.strip() and not is_path(path)):
            continue
        if os.path.exists(os.path.expanduser(path)):
            continue
        right = rights.get(key, start)
        if key.startswith("data.") and "://" in path:
            right = "a hub id such as openai/gsm8k, or a file; URLs are not supported"
        yield Problem(key, f"there is no file or folder {path.strip() or repr(path)}", right)
    yield from _output(config)


def _output(config: RunConfig) -> Iterator[Problem]:
    """Check the folder of the adapters: a fault found at the end would lose the training."""
    key = {"sft": "sft.output_dir", "rft": "training.output_dir"}.get(config.mode)
    if key is None:
        return
    output_dir = getattr(config, key.partition(".")[0]).output_dir
    if os.path.basename(os.path.normpath(output_dir)) in ("", ".", ".."):
        yield Problem(
            key, f"{output_dir!r} does not name a folder for the adapters", "a folder such as saved_models/mine"
        )
        return
    folder = os.path.abspath(os.path.expanduser(output_dir))
    parent = folder if os.path.isfile(folder) else os.path.dirname(folder)
    while not os.path.lexists(parent) and os.path.dirname(parent) != parent:
        parent = os.path.dirname(parent)
    if not os.path.isdir(parent):
        yield Problem(key, f"{parent} is a file, and the adapters need a folder", "a folder, created if missing")
    elif parent != os.getcwd() and not os.access(parent, os.W_OK):  # here, runs are made: who makes one hears of it
        yield Problem(key, f"{parent} is not writable", "a writable folder, created if missing")


def is_path(source: str) -> bool:
    """Return whether a dataset's source can only be a file or a folder: a hub id is `owner/name`, or one word."""
    return source.startswith((".", "/", "~")) or source.count("/") > 1 or source.endswith(FILES)
