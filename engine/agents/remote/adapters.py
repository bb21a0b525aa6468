"""Policy versions as folders of adapters, with unique names on every server."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import re
import shutil
import threading
import time
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from peft import PeftModel
from safetensors import SafetensorError
from torch import Tensor

from ....configs.errors import GrpoTuiError
from ...policy.models import save_adapters
from ...policy.prepared import acting
from ...policy.unwrap import base_of, device_of
from ...runs.durable import make_folder, sync_folder, sync_tree
from .client import ADMIN_TIMEOUT_S, ServerClient
from .pool import ServerPool
from .protocol import GenerateRequest, ServerRefusal

logger = logging.getLogger(__name__)

TEMPORARY = ".tmp-"
PROBE_TOKENS, PROBE_TEMPERATURE = 4, 1.5
"""Tokens drawn at a temperature other than 1, where a server's raw log-probs would differ."""


class AdapterError(GrpoTuiError, RuntimeError):
    """A policy version cannot be given to the servers."""


@dataclass(frozen=True, eq=False)
class Probe:
    """The log-probs of a policy on a fixed text, which verify that a server serves the same policy.

    logprobs: float32 [N - 1], nats, of each token but the first, at temperature 1. next_logprobs: float32 [V], nats, of
    every possible next token, at `PROBE_TEMPERATURE`."""

    logprobs: np.ndarray
    next_logprobs: np.ndarray


@dataclass(frozen=True, eq=False)
class Adapter:
    """One policy version. name: on every server, and of its folder. step: its optimiser steps. probe: its log-probs of
    the fixed text."""

    name: str
    step: int
    probe: Probe


class AdapterPublisher:
    """Publishes policy versions to the servers of `pool`, and unloads them.

    run: prefix of version names. counted: the letter before the number, s for optimiser steps. folder: for the
    adapters. served: the same folder on the servers. text: token ids of the fixed text. tolerance: allowed mean
    difference of log-probs in nats per token. Call `offer` and `retire` from one thread at a time. Server calls run in
    the pool's loop.
    """

    def __init__(
        self,
        run: str,
        folder: Path,
        served: str,
        pool: ServerPool,
        text: Sequence[int],
        tolerance: float,
        *,
        counted: str = "s",
    ) -> None:
        self.prefix = f"{re.sub('[^A-Za-z0-9_.-]', '-', run)}-{counted}"
        self.folder = folder
        self.served = served.rstrip("/")
        self.pool = pool
        self.text = tuple(text)
        self.tolerance = tolerance
        self.mismatch = 0.0
        """Mean difference of the last checked server, in nats per token."""
        self.current: Adapter | None = None
        """The version that acts by default."""
        self._published: list[Adapter] = []
        """Versions that every server has to serve, oldest first."""
        self._proved: dict[str, Adapter] = {}
        """Versions that every available server serves, by name."""
        self._unloaded = self._leftovers()
        """Folders of versions that no server serves any more."""
        self._users = Counter[str]()
        self._lock = threading.RLock()
        self._running: Future[None] | None = None
        self._closing = False
        pool.admit = self._admit

    def publish(self, model: PeftModel, step: int) -> Adapter:
        """Make the model's adapters the current version, once it is verified on every available server.

        Does nothing if the current version has this step. Waits while no server is available. Raises NoServersLeft,
        AdapterError (the folder cannot be written), ServerRefusal.
        """
        if self.current is not None and self.current.step == step:
            return self.current
        adapter = self.offer(model, step, self.probe(model))
        self.current = adapter
        self.release(adapter)
        self.retire()
        return adapter

    def probe(self, model: PeftModel) -> Probe:
        """Compute the log-probs of the fixed text in one short forward pass, in eval mode."""
        tokens = torch.tensor([self.text], device=device_of(model))
        with acting(model):
            logits = base_of(model)(input_ids=tokens, use_cache=False).logits[0].float()
        logprobs = logits[:-1].log_softmax(-1).gather(-1, tokens[0, 1:, None])[:, 0]
        following = (logits[-1] / PROBE_TEMPERATURE).log_softmax(-1)
        return Probe(logprobs.cpu().numpy(), following.cpu().numpy())

    def offer(
        self,
        model: PeftModel,
        step: int,
        text: Probe,
        tensors: Mapping[str, Tensor] | None = None,
        *,
        patient: bool = False,
    ) -> Adapter:
        """Return a version that is loaded and verified on every available server.

        It is in use until the caller releases it. text: `probe` of this version. tensors: its adapters by parameter
        name, if they are not in the model. patient: wait for a server without a limit. Raises the errors of `publish`.
        """
        try:
            name = self._write(model, step, tensors)
        except (OSError, SafetensorError) as problem:
            reason = getattr(problem, "strerror", None) or problem
            raise AdapterError(
                f"the adapters of version {step} cannot be written to {self.folder} ({reason}); set "
                "rollouts.adapter_folder to another folder"
            ) from problem
        adapter = Adapter(name, step, text)
        self.use(adapter)
        try:
            self._wait_for(self._give(adapter, None if patient else self.pool.wait_s))
        except BaseException:
            self.release(adapter)
            self._unloaded.append(self.folder / name)
            raise
        with self._lock:
            self._proved[name] = adapter
        return adapter

    def retire(self) -> None:
        """Unload versions that are neither current nor in use. Their folders are deleted at the next call."""
        self._delete()
        with self._lock:
            kept = {*+self._users, "" if self.current is None else self.current.name}
            old = [a for a in self._published if a.name not in kept]
            self._published = [a for a in self._published if a.name in kept]
            self._proved = {name: a for name, a in self._proved.items() if name in kept}
        if old:
            self._wait_for(self._unload(old))
            self._unloaded += [self.folder / adapter.name for adapter in old]

    def hold(self, step: int) -> Adapter | None:
        """Return the version of this step, in use until released; None if the servers do not have it."""
        with self._lock:
            adapter = next((a for a in self._proved.values() if a.step == step), None)
            if adapter is not None:
                self.use(adapter)
        return adapter

    def use(self, adapter: Adapter) -> None:
        with self._lock:
            self._users[adapter.name] += 1

    def release(self, adapter: Adapter) -> None:
        with self._lock:
            self._users[adapter.name] -= 1

    def end(self) -> None:
        """Cancel calls of `offer` and `retire` on another thread (CancelledError)."""
        self._closing = True
        if self._running is not None:
            self._running.cancel()

    def close(self) -> None:
        async def unload() -> None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(10.0):  # the run ends
                    await self._unload(self._published)

        self.pool.run(unload())
        self._unloaded += [self.folder / adapter.name for adapter in self._published]
        self._delete()
        self._published, self._proved, self.current = [], {}, None

    def _wait_for(self, work: Coroutine[None, None, None]) -> None:
        self._running = self.pool.begin(work)
        if self._closing:
            self._running.cancel()
        self._running.result()

    # ------------------------------------------------------------------------------------------------ folders

    def _write(self, model: PeftModel, step: int, tensors: Mapping[str, Tensor] | None) -> str:
        """Write the adapters into a folder atomically. Returns its name, which contains the checksum."""
        make_folder(self.folder)
        temporary = self.folder / f"{TEMPORARY}{self.prefix}{step}-{os.getpid()}"
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            save_adapters(model, temporary, tensors)
            with (temporary / "adapter_model.safetensors").open("rb") as file:
                checksum = hashlib.file_digest(file, "sha256").hexdigest()[:16]
            name = f"{self.prefix}{step}-{checksum}"
            final = self.folder / name
            if final in self._unloaded:
                self._unloaded.remove(final)
            if final.is_dir():  # from an earlier part of this run; the checksum in the name identifies its content
                return name
            sync_tree(temporary)
            os.rename(temporary, final)
            sync_folder(self.folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return name

    def _leftovers(self) -> list[Path]:
        try:
            return [p for p in self.folder.iterdir() if self._is_own(p.name.removeprefix(TEMPORARY))]
        except OSError:
            return []

    def _is_own(self, name: str) -> bool:
        return re.fullmatch(rf"{re.escape(self.prefix)}\d+-[0-9a-f]+", name) is not None

    def _delete(self) -> None:
        for folder in self._unloaded:
            shutil.rmtree(folder, ignore_errors=True)
        self._unloaded = []

    # ------------------------------------------------------------------------------------------------ in its loop

    async def _give(self, adapter: Adapter, wait_s: float | None) -> None:
        with self._lock:
            self._published = [*(a for a in self._published if a.name != adapter.name), adapter]
        try:
            await self.pool.each(self._admit)
            self.pool.restore_shares()
            await self.pool.take_in()
            await self.pool.wait_for_one(wait_s)
        except BaseException:
            with self._lock:
                self._published = [a for a in self._published if a is not adapter]
            raise

    async def _unload(self, adapters: Sequence[Adapter]) -> None:
        async def unload(client: ServerClient) -> None:
            for adapter in adapters:
                await client.unload(adapter.name)

        await self.pool.each(unload)

    async def _admit(self, client: ServerClient) -> None:
        """Load and verify every wanted version; unload other versions of this run."""
        proved: set[str] = set()
        while missing := [a for a in self._published if a.name not in proved]:
            served = await client.models()
            for adapter in missing:
                if adapter.name not in served:
                    await client.load(adapter.name, f"{self.served}/{adapter.name}")
                if adapter is self._published[-1] or adapter.name not in served:
                    await self._prove(client, adapter)
                proved.add(adapter.name)
            for name in served:
                if self._is_own(name) and name not in {a.name for a in self._published}:
                    await client.unload(name)

    async def _prove(self, client: ServerClient, adapter: Adapter) -> None:
        request = GenerateRequest(
            model=adapter.name,
            token_ids=self.text,
            max_tokens=PROBE_TOKENS,
            request_id=f"probe-{adapter.name}-{os.urandom(4).hex()}",
            temperature=PROBE_TEMPERATURE,
            prompt_logprobs=True,
        )
        patience_s = max(self.pool.request_timeout_s, ADMIN_TIMEOUT_S)
        started = time.monotonic()
        answer = await client.patiently(lambda: client.generate(request, patience_s))
        client.proved_in_s = time.monotonic() - started
        mean = float(np.abs(np.asarray(answer.prompt_logprobs) - adapter.probe.logprobs).mean())
        if mean > self.tolerance:
            raise ServerRefusal(
                f"the server {client.url} serves {adapter.name} with other weights or in another precision: its "
                f"log-probs differ by {mean:.2g} nats per token from the trainer's, and {self.tolerance:g} are allowed "
                "(rollouts.probe_tolerance); serve model.base in the precision of model.compute"
            )
        token, logprob = answer.token_ids[0], answer.logprobs[0]
        expected = adapter.probe.next_logprobs
        if token >= len(expected) or abs(logprob - float(expected[token])) > max(10 * self.tolerance, 1e-3):
            raise ServerRefusal(
                f"the log-probs of the server {client.url} ignore the sampling temperature; start it with "
                "--logprobs-mode processed_logprobs"
            )
        self.mismatch = mean
