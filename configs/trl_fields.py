"""Where to set each field of TRL's `GRPOConfig`: in `training.trl`, in a key of grpo-tui, or nowhere (refused).

`training.trl: {delta: 1.5}` passes a field to TRL. The tables validate configurations and generate
docs/from-grpoconfig.md (`docs/from_grpoconfig.py`).
"""

from __future__ import annotations

import ast
import difflib
from functools import cache
from importlib.util import find_spec
from pathlib import Path

OURS: dict[str, str] = {
    "output_dir": "training.output_dir",
    "max_steps": "training.max_steps",
    "learning_rate": "training.learning_rate",
    "per_device_train_batch_size": "training.prompts_per_step and training.micro_batch_size",
    "gradient_accumulation_steps": "training.prompts_per_step and training.micro_batch_size",
    "num_generations": "training.num_generations",
    "max_completion_length": "training.max_turn_tokens and training.max_trajectory_tokens",
    "max_prompt_length": "training.max_trajectory_tokens",
    "loss_type": "training.loss_type",
    "beta": "training.beta",
    "scale_rewards": "training.scale_advantages",
    "multi_objective_aggregation": "training.advantages: gdpo",
    "reward_weights": "environment.reward_funcs",
    "temperature": "training.temperature",
    "top_p": "training.top_p",
    "top_k": "training.top_k",
    "min_p": "training.min_p",
    "repetition_penalty": "training.repetition_penalty",
    "steps_per_generation": "training.trl.generation_batch_size, in rollouts",
    "warmup_ratio": "training.trl.warmup_steps, where a number below 1 is a fraction of the steps",
    "chat_template_kwargs": "model.chat_template_kwargs",
    "max_tool_calling_iterations": "environment.config, if the environment has such a limit",
    "seed": "seed",
    "run_name": "name",
    "resume_from_checkpoint": "grpo-tui train --resume RUN",
    "report_to": "logging.report_to",
    "use_cpu": "model.device",
    **dict.fromkeys(("fp16", "bf16", "fp16_full_eval", "bf16_full_eval"), "model.compute and model.sampling"),
    **dict.fromkeys(("gradient_checkpointing", "activation_checkpointing"), "model.gradient_checkpointing"),
    "model_init_kwargs": "model.base, model.revision, model.weights, model.attn_implementation and model.quantization",
    **dict.fromkeys(("save_strategy", "save_steps"), "training.save_every and training.save_minutes"),
    "save_total_limit": "training.keep_checkpoints and training.keep_adapters",
    **dict.fromkeys(("eval_strategy", "eval_steps"), "training.eval_every"),
    "num_generations_eval": "grpo-tui eval --samples",
    **dict.fromkeys(("push_to_hub", "hub_model_id"), "grpo-tui push RUN ORG/NAME"),
    "use_vllm": "rollouts.engine: vllm",
    **dict.fromkeys(("vllm_server_base_url", "vllm_server_host", "vllm_server_port"), "rollouts.servers"),
    "vllm_server_timeout": "rollouts.server_wait_s",
    "vllm_importance_sampling_correction": "rollouts.correction: none",
    "vllm_importance_sampling_mode": "rollouts.correction",
    **dict.fromkeys(("vllm_importance_sampling_clip_max", "vllm_importance_sampling_cap"), "rollouts.correction_cap"),
    "vllm_importance_sampling_clip_min": "rollouts.correction_floor",
}
"""Fields with a key of grpo-tui, and that key."""

SCHEDULE = (
    *("lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps", "optim", "optim_args", "optim_target_modules"),
    *("weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm"),
)
"""Fields of the optimiser and its schedule. `sft.trl` also accepts them."""

UNUSED_BY_OWN_LOSS = ("delta", "off_policy_mask_threshold", "top_entropy_quantile")
"""Fields of TRL's loss that a loss of `engine/training/losses` replaces."""

PASSED: dict[str, str] = {
    **dict.fromkeys(SCHEDULE, ""),
    "num_train_epochs": "with `training.max_steps: null`",
    "shuffle_dataset": "",
    "num_iterations": "number of updates per batch of rollouts",
    "generation_batch_size": "a multiple of `training.prompts_per_step` × `training.num_generations`",
    **dict.fromkeys(("epsilon", "epsilon_high", "delta", "importance_sampling_level"), ""),
    **dict.fromkeys(("sapo_temperature_neg", "sapo_temperature_pos"), "with `training.loss_type: sapo`"),
    **dict.fromkeys(("vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg"), "with `loss_type: vespo`"),
    "mask_truncated_completions": "leaves out rollouts cut off by a token limit",
    "off_policy_mask_threshold": "",
    "top_entropy_quantile": "",
    **dict.fromkeys(("entropy_coef", "use_adaptive_entropy", "entropy_coef_min", "entropy_coef_max"), ""),
    **dict.fromkeys(("entropy_coef_delta", "entropy_target"), ""),
    "use_bias_correction_kl": "",
    **dict.fromkeys(("sync_ref_model", "ref_model_mixup_alpha", "ref_model_sync_steps"), "with `model.lora: null`"),
    "router_aux_loss_coef": "for mixture-of-experts models",
    "disable_dropout": "",
    **dict.fromkeys(("use_liger_kernel", "liger_kernel_config"), "kernels for individual layers, on a GPU"),
    **dict.fromkeys(("tf32", "torch_empty_cache_steps", "full_determinism", "skip_memory_metrics", "debug"), ""),
    **dict.fromkeys(("log_level", "log_level_replica", "log_on_each_node", "logging_nan_inf_filter"), ""),
    **dict.fromkeys(("project", "trackio_space_id", "trackio_bucket_id", "trackio_static_space_id"), "for `logging`"),
    **dict.fromkeys(("ddp_find_unused_parameters", "ddp_bucket_cap_mb", "ddp_broadcast_buffers"), ""),
    **dict.fromkeys(("ddp_static_graph", "ddp_backend", "ddp_timeout"), ""),
}
"""Fields that are passed to TRL, with a remark. Fields of a newer TRL that are in no table are passed, too."""

REASONS: dict[str, tuple[str, ...]] = {
    "set it on the server's command line: grpo-tui rollouts serve": (
        *("vllm_mode", "vllm_model_impl", "vllm_enable_sleep_mode", "vllm_structured_outputs_regex"),
        *("vllm_group_port", "vllm_gpu_memory_utilization", "vllm_max_model_length", "vllm_tensor_parallel_size"),
    ),
    "grpo-tui's own sampler generates the rollouts and manages its cache": (
        *("generation_kwargs", "cache_implementation", "use_cache", "use_transformers_continuous_batching"),
        *("transformers_continuous_batching_config", "use_transformers_paged", "pad_to_multiple_of"),
    ),
    "replaced by a packed forward pass that computes log-probs without logits": (
        *("use_liger_loss", "torch_compile", "torch_compile_backend", "torch_compile_mode"),
        *("auto_find_batch_size", "cast_lm_head_to_fp32"),
    ),
    "the trained policy would differ from the one that acted": ("neftune_noise_alpha",),
    "every step and every rollout is recorded: grpo-tui inspect RUN": (
        *("logging_strategy", "logging_steps", "logging_first_step", "disable_tqdm", "log_completions"),
        *("log_multimodal", "num_completions_to_print", "log_unique_prompts", "log_completions_hub_repo"),
        "include_num_input_tokens_seen",
    ),
    "checkpoints are complete and atomic, and resuming is bit-exact": (
        *("save_only_model", "save_on_each_node", "enable_jit_checkpoint", "ignore_data_skip"),
        "restore_callback_states_from_checkpoint",
    ),
    "grpo-tui eval RUN@STEP evaluates and compares checkpoints": (
        *("per_device_eval_batch_size", "eval_delay", "eval_on_start", "eval_accumulation_steps"),
        *("eval_do_concat_batches", "eval_use_gather_object", "batch_eval_metrics", "include_for_metrics"),
        *("prediction_loss_only", "load_best_model_at_end", "metric_for_best_model", "greater_is_better"),
    ),
    "grpo-tui push RUN ORG/NAME publishes a finished run": (
        *("hub_token", "hub_private_repo", "hub_strategy", "hub_always_push", "hub_revision"),
    ),
    "distributed training uses DDP or FSDP2: --num-processes or --accelerate-config": (
        *("fsdp", "fsdp_config", "deepspeed", "ds3_gather_for_generation", "accelerator_config"),
        *("parallelism_config", "local_rank"),
    ),
    "the data loader only yields row numbers, which takes no time": (
        *("dataloader_drop_last", "dataloader_num_workers", "dataloader_pin_memory", "dataloader_persistent_workers"),
        *("dataloader_prefetch_factor", "dataloader_multiprocessing_context", "dataloader_in_order"),
        *("remove_unused_columns", "label_names", "train_sampling_strategy", "length_column_name", "data_seed"),
    ),
    "GRPO's loss does not use it": ("label_smoothing_factor", "average_tokens_across_devices"),
    "the command determines this: grpo-tui train or grpo-tui eval": ("do_train", "do_eval", "do_predict"),
    "grpo-tui never runs code from a model's repository": ("trust_remote_code",),
    "model.gradient_checkpointing selects the layers and keeps attention outputs": (
        *("gradient_checkpointing_kwargs", "activation_checkpointing_kwargs"),
    ),
}
REFUSED: dict[str, str] = {field: reason for reason, fields in REASONS.items() for field in fields}
"""Fields that cannot work with whole trajectories or have no effect here, each with the reason."""


PEFT = (
    *("use_rslora", "use_dora", "lora_bias", "init_lora_weights", "rank_pattern", "alpha_pattern"),
    *("layers_to_transform", "layers_pattern"),
)
"""Fields of PEFT's `LoraConfig` passed by `model.lora.peft`. Others change the base model or have their own key."""


@cache
def installed_fields() -> frozenset[str]:
    """Return the fields of the installed `GRPOConfig`; empty without TRL.

    It reads the source, because importing it would load torch.
    """
    found: set[str] = set()
    for package, file, name in (
        ("transformers", "training_args.py", "TrainingArguments"),
        ("trl", "trainer/base_config.py", "_BaseConfig"),
        ("trl", "trainer/grpo_config.py", "GRPOConfig"),
    ):
        spec = find_spec(package)
        folder = next(iter(spec.submodule_search_locations or ()), None) if spec is not None else None
        if folder is None or not (Path(folder) / file).is_file():
            continue
        tree = ast.parse((Path(folder) / file).read_text(encoding="utf-8"))
        body = next((n.body for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name), [])
        found |= {n.target.id for n in body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}
    return frozenset(name for name in found if not name.startswith("_")) if len(found) > 1 else frozenset()


def fault(key: str) -> tuple[str, str] | None:
    """Return the fault and the fix of a key that `training.trl` cannot pass. Without TRL, unknown keys have none."""
    if key in OURS:
        return "this setting has its own key here", OURS[key]
    if key in REFUSED:
        return "this field is not passed to TRL", REFUSED[key]
    known = installed_fields()
    if not known or key in known:
        return None
    near = next(iter(difflib.get_close_matches(key, [*known, *OURS], n=1)), None)
    right = "docs/from-grpoconfig.md lists its fields" if near is None else f"nearest: {OURS.get(near, near)}"
    return "GRPOConfig of the installed TRL has no such field", right
