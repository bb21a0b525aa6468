"""One GRPO step, ours against stock TRL: same policy, environment, prompts, batch and token budgets.

    python -m benchmarks.grpo_step [--task default|long|all] [--steps 8] [--rounds 2] [--policy builtin:tiny]
                                   [--profile]
    python -m benchmarks.grpo_step --policy smollm2 [--task short|answer|essay|all] [--dtype float32|bfloat16]

Stock is TRL's `GRPOTrainer` with a `rollout_func` that drives the same environment with `generate` for each turn,
all live rollouts together, as its documentation shows. Ours is the trainer of `--mode rft` with everything that it
does by default: shaped rewards, replay, and the run's record. Each variant runs in processes of its own, in turns;
a row gives the median step and the largest resident memory (on a GPU: allocated memory) seen, of each run as soon as
it is known and of all rounds at the end.

Tasks: `default` is the default training (visual environment, 16 x 8 rollouts); `long` has 10 turns and about 1,000
tokens a trajectory. `--policy random:0.5b` (or 1.5b) builds a model of that size from a config, for a GPU.

SmolLM2-135M has tasks of its own, with one turn and 4 x 8 rollouts: an answer has at most 64 tokens (`short`), 256
(`answer`) or 1,024 (`essay`). The line `floor` has the processor time of the matrix products alone, for the tokens of
ours: a pass with 32 rows for each token of the answers, one over all tokens for the log-probs, and two for training and
its gradients. The vocabulary head counts for tokens of the agent.

`stock, tuned` is what somebody writes who knows TRL and transformers well, and what the ratios are against: no gradient
checkpointing, adapters merged while it generates, `generate` going on from the key-value cache of the last turn, and
micro-batches that suit the machine (`micro` below).

Gradient checkpointing is on in `stock`, as TRL has it by default; ours keeps what is small enough
(`engine/policy/activations.py`).

`--profile` measures nothing against anything: it says which of torch's kernels one step of ours is spent in. On a GPU
it prints how long the kernels of each phase ran, and that time as a share of the phase: the rest is the GPU waiting for
Python.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from grpo_tui.engine.launch.children import CPU_SETTINGS

from .smollm2 import smollm2

STOCK, OURS, TUNED = "stock", "ours", "stock, tuned"
TASKS: dict[str, dict[str, Any]] = {
    "default": {
        "environment": "grpo_tui.engine.demonstration.visual.VisualEnv",
        "prompts": 16,
        "group": 8,
        "turn_tokens": 64,
        "trajectory_tokens": 512,
        "turns": 8,
        "micro": 16,
    },
    "long": {
        "environment": "benchmarks.long_env.LongEnv",
        "prompts": 4,
        "group": 8,
        "turn_tokens": 40,
        "trajectory_tokens": 1280,
        "turns": 10,
        "micro": 8,
    },
}
ONE_TURN = {"prompts": 4, "group": 8, "turns": 1, "micro": 8}
SMOLLM2: dict[str, dict[str, Any]] = {
    "short": ONE_TURN | {"environment": "benchmarks.long_env.ShortEnv", "turn_tokens": 64, "trajectory_tokens": 192},
    "answer": ONE_TURN | {"environment": "benchmarks.long_env.EssayEnv", "turn_tokens": 256, "trajectory_tokens": 384},
    "essay": ONE_TURN | {"environment": "benchmarks.long_env.EssayEnv", "turn_tokens": 1024, "trajectory_tokens": 1152},
}
ALL = TASKS | SMOLLM2
FORMATS = ("weights", "compute", "sampling")
TARGETS = {"default": 0.20, "long": 0.35, "short": 0.30, "answer": 0.35, "essay": 0.35}
"""Target ratios of ours to `stock, tuned`, in time and in processor time."""


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=[*ALL, "all"], default="all")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--policy", default="builtin:tiny")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], help="default: bfloat16 but for the tiny policy")
    parser.add_argument("--prompts", type=int, help="groups in a step; default: the task's")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--variant", choices=[STOCK, OURS, TUNED], help=argparse.SUPPRESS)
    given = parser.parse_args()
    for row in ALL.values():
        row["prompts"] = given.prompts or row["prompts"]
    rows = SMOLLM2 if given.policy == "smollm2" else TASKS
    if given.policy == "smollm2":
        given.policy = str(smollm2())
    if given.variant:
        print("RESULT " + json.dumps(measure(given.variant, given)), flush=True)
        return
    for task in rows if given.task == "all" else [given.task]:
        if given.profile:
            say(f"\n{task}: processor seconds of one step of ours, by kernel")
            _run(OURS, task, given)
        else:
            table(task, given)


def table(task: str, given: argparse.Namespace) -> None:
    """Run the variants in turns, each in a separate process, and print the table."""
    variants = [STOCK, TUNED, OURS]
    row = ALL[task]
    policy = f"{Path(given.policy).name}, {given.dtype or 'default formats'}"
    say(f"\n{task}: {row['prompts']} x {row['group']} rollouts, up to {row['turns']} turns, policy {policy}")
    width = max(map(len, variants)) + 2
    say(f"{'':{width}}{'s/step':>9}{'CPU s':>8}{'MiB':>8}{'tokens':>9}{'agent':>8}{'prompt':>8}   phases, s")
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in variants}
    for number in range(1, given.rounds + 1):
        say(f"round {number} of {given.rounds}")
        for name in variants:
            results[name].append(_run(name, task, given))
            say(line(name, width, results[name][-1:]))
    if given.rounds > 1:
        say("all rounds")
        for name, runs in results.items():
            say(line(name, width, runs))
    medians = {name: median(s for r in runs for s in r["seconds"]) for name, runs in results.items()}
    cpu = {name: median(r["cpu"] for r in runs) for name, runs in results.items()}
    for other in (STOCK, TUNED):
        goal = f" (to reach: {TARGETS[task]:.2f})" if other == TUNED else ""
        in_cpu = cpu[OURS] / cpu[other]
        say(f"ours / {other}: {medians[OURS] / medians[other]:.2f}, in processor time {in_cpu:.2f}{goal}")
    if task in SMOLLM2:
        tokens, agent = (median(r[k] for r in results[OURS]) for k in ("tokens", "agent_tokens"))
        least = floor(given, row["prompts"] * row["group"], row["turn_tokens"], int(tokens), int(agent))
        parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in least.items())
        say(f"floor: {parts} s; ours / floor: {cpu[OURS] / sum(least.values()):.2f} in processor time")


def floor(given: argparse.Namespace, rows: int, turn_tokens: int, tokens: int, agent: int) -> dict[str, float]:
    """Measure the processor seconds of a step's matrix products. tokens: total, `agent` of them from the policy."""
    import torch
    from transformers import AutoConfig

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    model: Any = AutoConfig.from_pretrained(given.policy)
    dtype = getattr(torch, given.dtype or "bfloat16")
    wide, inner, head = model.hidden_size, model.intermediate_size, model.hidden_size // model.num_attention_heads
    keys = model.num_key_value_heads * head
    layer = [(wide, wide), (wide, keys), (wide, keys), (wide, wide), (wide, inner), (wide, inner), (inner, wide)]

    def seconds(count: int, shapes: list[tuple[int, int]]) -> float:
        total = 0.0
        for k, n in shapes:
            x, weight = torch.randn(count, k, dtype=dtype), torch.randn(n, k, dtype=dtype)
            torch.nn.functional.linear(x, weight)
            repeats = max(1, int(2e9 // (count * k * n)))
            began = time.process_time()
            for _ in range(repeats):
                torch.nn.functional.linear(x, weight)
            total += (time.process_time() - began) / repeats
        return total

    decoding = seconds(rows, layer) * model.num_hidden_layers + seconds(rows, [(wide, model.vocab_size)])
    whole = seconds(tokens, layer) * model.num_hidden_layers + seconds(agent, [(wide, model.vocab_size)])
    return {"generate": decoding * min(turn_tokens, agent / rows), "logprobs": whole, "backward": 2 * whole}


def line(name: str, width: int, runs: list[dict[str, Any]]) -> str:
    """Format a row of the table: medians over the steps of these runs."""
    cpu = median(r["cpu"] for r in runs)
    memory = max(r["memory"] for r in runs)
    tokens, agent, prompt = (median(r[k] for r in runs) for k in ("tokens", "agent_tokens", "prompt_tokens"))
    phases = "  ".join(f"{k} {median(r['phases'].get(k, 0) for r in runs):.2f}" for k in runs[0]["phases"])
    seconds = median(s for r in runs for s in r["seconds"])
    return f"{name:{width}}{seconds:9.3f}{cpu:8.2f}{memory:8.0f}{tokens:9.0f}{agent:8.0f}{prompt:8.0f}   {phases}"


def say(text: str) -> None:
    """Print and flush, so that results survive if the benchmark is stopped."""
    print(text, flush=True)


def _run(name: str, task: str, given: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.grpo_step", "--variant", name, "--task", task]
    command += ["--steps", str(given.steps), "--policy", given.policy, "--device", given.device]
    command += ["--profile"] * given.profile + (["--dtype", given.dtype] if given.dtype else [])
    command += ["--prompts", str(given.prompts)] if given.prompts else []
    environment = {**CPU_SETTINGS, **os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        sys.exit(done.stdout[-2000:] + done.stderr[-4000:])
    if given.profile:
        say(done.stdout.partition("RESULT ")[0].rstrip())
    return json.loads(lines[-1].removeprefix("RESULT "))


def measure(variant: str, given: argparse.Namespace) -> dict[str, Any]:
    """Run some steps of one variant in this process, after two warm-up steps."""
    import torch
    from transformers import TrainerCallback

    warnings.simplefilter("ignore")
    config = run_config(given)
    with tempfile.TemporaryDirectory() as folder:
        if variant == OURS:
            trainer, counts, close = build_ours(config, Path(folder))
        else:
            micro = ALL[given.task]["micro"]
            trainer, counts, close = build_stock(config, Path(folder), micro, tuned=variant == TUNED)

        class Clock(TrainerCallback):
            def __init__(self) -> None:
                self.ends: list[float] = []
                self.cpu: list[float] = []

            def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
                if logs and "loss" in logs:
                    if torch.cuda.is_available():
                        torch.cuda.synchronize()
                    self.ends.append(time.perf_counter())
                    self.cpu.append(time.process_time())

        clock = Clock()
        trainer.add_callback(clock)
        gpu = torch.cuda.is_available() and given.device != "cpu"
        on_gpu = GpuProfile() if given.profile and gpu else None
        if given.profile and not gpu:
            trainer.add_callback(_profiled())
        trainer.train()
        counted = counts()
        if on_gpu is not None:
            on_gpu.report(counted["phases"])
        close()
    memory = torch.cuda.max_memory_allocated() / 2**20 if gpu else 0.0
    return {
        "seconds": [b - a for a, b in zip(clock.ends[1:], clock.ends[2:], strict=False)],
        "cpu": median(b - a for a, b in zip(clock.cpu[1:], clock.cpu[2:], strict=False)),
        "memory": memory or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        **counted,
    }


def _profiled() -> Any:
    """Return a callback that prints the kernels of the third step, slowest first."""
    from torch.profiler import ProfilerActivity, profile
    from transformers import TrainerCallback

    class Profiled(TrainerCallback):
        def __init__(self) -> None:
            self.profile = profile(activities=[ProfilerActivity.CPU])

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 2:
                self.profile.start()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step != 3:
                return
            self.profile.stop()
            rows = sorted(self.profile.key_averages(), key=lambda row: -row.self_cpu_time_total)
            whole = sum(row.self_cpu_time_total for row in rows)
            for row in rows[:8]:
                own = row.self_cpu_time_total
                say(f"{own / 1e6:8.2f} s {own / whole:5.0%} {row.count:8,} calls  {row.key}")
            say(f"{whole / 1e6:8.2f} s in all")

    return Profiled()


class GpuProfile:
    """Profiles the kernels of each phase in the first step, with nothing else recorded. A later step measures the time
    of the phases."""

    def __init__(self) -> None:
        from grpo_tui.engine.agents.session import TransformersSession
        from grpo_tui.engine.training.phases import PhaseClock

        self.kernels: dict[str, Counter[str]] = {}
        self.seconds: dict[str, Counter[str]] = {}
        self._timed = PhaseClock.__call__
        self._open = False
        PhaseClock.__call__ = self._call()  # type: ignore[method-assign]
        self._act = TransformersSession.act
        TransformersSession.act = self._generate()  # type: ignore[method-assign]

    def _generate(self) -> Any:
        """Record the first turn of all rollouts. The runner itself sums the seconds of this phase."""
        from torch.profiler import ProfilerActivity, profile

        def act(session: Any, rows: Any) -> Any:
            if "generate" in self.kernels:
                return self._act(session, rows)
            with profile(activities=[ProfilerActivity.CUDA]) as profiled:
                made = self._act(session, rows)
            of_kernels: Any = profiled.profiler
            self._count("generate", of_kernels.kineto_results.events())
            return made

        return act

    def _call(self) -> Any:
        from torch.profiler import ProfilerActivity, profile

        @contextlib.contextmanager
        def call(clock: Any, phase: Any, without: Any = None) -> Iterator[None]:
            first = not self._open and str(phase) not in self.kernels
            if not first:
                with self._timed(clock, phase, without):
                    yield
                return
            self._open = True
            with profile(activities=[ProfilerActivity.CUDA]) as profiled, self._timed(clock, phase, without):
                yield
            self._open = False
            of_kernels: Any = profiled.profiler
            self._count(str(phase), of_kernels.kineto_results.events())

        return call

    def _count(self, phase: str, events: Sequence[Any]) -> None:
        kernels, seconds = self.kernels.setdefault(phase, Counter()), self.seconds.setdefault(phase, Counter())
        for event in events:
            if event.device_type().name == "CUDA":
                kernels[event.name()] += 1
                seconds[event.name()] += event.duration_ns() / 1e9

    def report(self, phases: Mapping[str, float]) -> None:
        for phase, seconds in self.seconds.items():
            if not (wall := phases.get(phase, 0.0)):
                continue
            busy = seconds.total()
            say(f"{phase}: {self.kernels[phase].total():,} kernels, {busy:.3f} s, {busy / wall:.0%} of {wall:.3f} s")
            for name, took in seconds.most_common(6):
                say(f"  {took:8.3f} s {self.kernels[phase][name]:8,}  {name[:100]}")


def run_config(given: argparse.Namespace) -> Any:
    """Return the default configuration with the task's batch size and budgets."""
    from grpo_tui.configs.schema import RunConfig

    task = ALL[given.task]
    model: dict[str, Any] = {"device": given.device}
    if given.policy != "builtin:tiny":
        folder = random_policy(given.policy) if given.policy.startswith("random:") else given.policy
        model |= {"base": folder, "sft_adapters": None, **dict.fromkeys(FORMATS, given.dtype or "bfloat16")}
    return RunConfig.model_validate(
        {
            "model": model,
            "environment": {
                "class_path": task["environment"],
                "config": {"max_turns": task["turns"]},
                "train_tasks": 512,
                "eval_tasks": 0,
            },
            "training": {
                "max_steps": given.steps + 2,
                "prompts_per_step": task["prompts"],
                "num_generations": task["group"],
                "max_turn_tokens": task["turn_tokens"],
                "max_trajectory_tokens": task["trajectory_tokens"],
                "learning_rate": 1e-7,  # nearly freezes the policy, so that steps are comparable
                "save_every": 0,
                "eval_every": 0,
            },
        }
    )


def build_ours(config: Any, folder: Path) -> tuple[Any, Any, Any]:
    """Build the trainer of `--mode rft`, with its record."""
    from grpo_tui.engine.record.step_recorder import StepRecorder
    from grpo_tui.engine.runs.write.writer import RunWriter
    from grpo_tui.engine.training.rft import build_trainer

    writer = RunWriter(folder)
    seen: list[dict[str, Any]] = []
    recorder = StepRecorder(writer)
    trainer, callbacks = build_trainer(config, folder, recorder)

    def observe(step: int, values: Mapping[str, Any]) -> None:
        made = trainer.rollouts.generated
        seen.append(
            {k.removeprefix("time/"): v for k, v in values.items() if k.startswith("time/")}
            | {"tokens": sum(map(len, made))}
            | {"agent": sum(r.agent_tokens for r in made)}
            | {"prompt": sum(r.prompt_length for r in made) / len(made)}
        )

    callbacks.recording.observers.append(observe)

    def counts() -> dict[str, Any]:
        last = seen[2:]
        names = ("generate", "environment", "reward", "logprobs", "backward", "record")
        return {
            "phases": {n: median(row.get(n, 0.0) for row in last) for n in names},
            "tokens": median(row["tokens"] for row in last),
            "agent_tokens": median(row["agent"] for row in last),
            "prompt_tokens": median(row["prompt"] for row in last),
        }

    return trainer, counts, writer.close


def build_stock(config: Any, folder: Path, micro: int, *, tuned: bool) -> tuple[Any, Any, Any]:
    """Build TRL's `GRPOTrainer` on the same environment, with its own gradient checkpointing unless `tuned`."""
    from datasets import Dataset
    from peft import PeftModel, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl.trainer.grpo_trainer import GRPOTrainer

    from grpo_tui.engine.policy.models import load_policy, lora_config
    from grpo_tui.engine.rollouts.dataset import load_rows
    from grpo_tui.engine.training.rft import grpo_config

    from .stock_rollout import StockRollout, TunedRollout

    model: Any
    tokenizer: Any
    if Path(config.model.base).is_dir():  # load it as TRL users do: our layers compute half precision differently
        base: Any = AutoModelForCausalLM.from_pretrained(config.model.base, dtype=config.model.weights)
        tokenizer = AutoTokenizer.from_pretrained(config.model.base)
        if config.model.sft_adapters is None:
            model = get_peft_model(base, lora_config(config.model.lora, base))
        else:
            model = PeftModel.from_pretrained(base, config.model.sft_adapters, is_trainable=True)
    else:
        model, tokenizer = load_policy(config.model, adapters=config.model.sft_adapters, trainable=True)
    rows = load_rows(config.environment, "train", config.seed, tokenizer)
    args = grpo_config(config, folder, 1, len(rows))
    args.activation_checkpointing = args.gradient_checkpointing = not tuned
    if tuned:
        whole = args.per_device_train_batch_size * args.gradient_accumulation_steps
        args.per_device_train_batch_size = micro
        args.gradient_accumulation_steps = whole // micro
        args.steps_per_generation = args.gradient_accumulation_steps  # one batch of rollouts per step for any `micro`
    args.activation_checkpointing_kwargs = args.gradient_checkpointing_kwargs = {"use_reentrant": False}
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    rollout = (TunedRollout if tuned else StockRollout)(rows, model, tokenizer, config)
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=lambda prompts, earned, **_: earned,
        args=args,
        train_dataset=Dataset.from_list([{"prompt": str(i)} for i in range(len(rows))]),
        processing_class=tokenizer,
        rollout_func=rollout,
    )
    return trainer, rollout.counts, lambda: None


def random_policy(name: str) -> str:
    """Create a Qwen3 of this size with random weights and the tiny policy's tokenizer, in a temporary folder."""
    import torch
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    from grpo_tui.engine.demonstration import policies

    sizes = {"random:0.5b": (896, 4864, 24, 14, 64), "random:1.5b": (1536, 8960, 28, 12, 128)}
    if name not in sizes:
        raise SystemExit(f"unknown policy {name}: builtin:tiny, {', '.join(sizes)}, or a folder")
    hidden, inner, layers, heads, head = sizes[name]
    tokenizer: Any = AutoTokenizer.from_pretrained(str(Path(policies.__file__).parent / "base"))
    folder = Path(tempfile.gettempdir()) / f"grpo-tui-{name.replace(':', '-')}"
    if not (folder / "config.json").exists():
        torch.manual_seed(0)
        config = Qwen3Config(
            vocab_size=151_936,
            hidden_size=hidden,
            intermediate_size=inner,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=2,
            head_dim=head,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
        Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)  # type: ignore[arg-type]
        tokenizer.save_pretrained(folder)
    return str(folder)


if __name__ == "__main__":
    main()
