"""A real run of a tiny policy that holds conversations, asked over HTTP."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import openai
import pytest
import torch

from grpo_tui.configs.schema import RunConfig
from grpo_tui.engine.launch.start import start_run
from grpo_tui.engine.launch.stop import stop_run
from grpo_tui.engine.runs.control.status import look
from tests.forked import forked_processes

from .test_online_run import _address, logs, wait_for


@dataclass(frozen=True)
class Served:
    """A run that answers at `url`, and its configuration."""

    url: str
    run_dir: Path
    config: RunConfig

    @property
    def model(self) -> str:
        return self.config.model.base

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="any", max_retries=0)

    def ask(self, messages: Any, **options: Any) -> Any:
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        return self.client().chat.completions.create(model=self.model, messages=messages, **options)

    def refused(self, messages: Any, **options: Any) -> str:
        """The message of the 400 that the request gets."""
        with pytest.raises(openai.BadRequestError) as caught:
            self.ask(messages, **options)
        return str(caught.value.body["message"])  # type: ignore[index]

    @cached_property
    def policy(self) -> tuple[Any, Any]:
        """Model and tokenizer as transformers and PEFT load them."""
        from peft import PeftModel
        from transformers import AutoModelForCausalLM, AutoTokenizer

        model = AutoModelForCausalLM.from_pretrained(self.model, dtype=torch.float32)
        if self.config.model.sft_adapters:
            model = PeftModel.from_pretrained(model, self.config.model.sft_adapters)
        return model.eval(), AutoTokenizer.from_pretrained(self.model)


@contextlib.contextmanager
def served(config: RunConfig, folder: Path) -> Iterator[Served]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("OMP_NUM_THREADS", "1")
        patched.setenv("HF_HUB_OFFLINE", "1")
        with forked_processes():
            run_dir = Path(start_run(config, runs_dir=folder / "runs", run_id="served").path)
    try:
        yield Served(wait_for(lambda: _address(run_dir), "the address"), run_dir, config)
    finally:
        assert stop_run(look(run_dir), timeout=60).status == "stopped", logs(run_dir)
