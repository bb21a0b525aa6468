"""Versions of the policy as folders of adapters, on every server under a name that is never used for anything else."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from peft import PeftModel

from ....configs.errors import GrpoTuiError
from ...policy.models import save_adapters
from ...policy.probe import Probe, probe
from ...runs.durable import make_folder, sync_folder, sync_tree
from .client import ServerClient
from .pool import ServerPool
from .protocol import GenerateRequest, ServerRefusal

logger = logging.getLogger(__name__)

TEMPORARY = ".tmp-"
PROBE_TOKENS = 4
"""Drawn at a temperature that is not 1: where a server reports raw log-probs, they differ by it."""


class AdapterError(GrpoTuiError, RuntimeError):
    """A version of the policy cannot be given to the servers."""


@dataclass(frozen=True, eq=False)
class Adapter:
    """One version of the policy. name: on every server; served: its folder as the servers see it; step: optimiser steps
    it had made; probe: what it says of the fixed text."""

    name: str
    step: int
    folder: Path
    served: str
    probe: Probe


class AdapterPublisher:
    """Gives versions of the policy to the servers of `pool`, and takes them away again.

    run: begins every name. folder: where they are written; served: the same folder as the servers see it. text: token
    ids of the fixed text by which a server proves what it serves. tolerance: by how many nats a token its log-probs may
    differ from the trainer's, in the mean.

    Calls come from one thread at a time; what servers do is done in the pool's loop.
    """

    def __init__(
        self, run: str, folder: Path, served: str, pool: ServerPool, text: Sequence[int], tolerance: float
    ) -> None:
        if len(text) < 2:
            raise ValueError("the fixed text needs two tokens at least")
        self.prefix = f"{re.sub('[^A-Za-z0-9_.-]', '-', run)}-s"
        self.folder = folder
        self.served = served.rstrip("/")
        self.pool = pool
        self.text = tuple(text)
        self.tolerance = tolerance
        self.mismatch = 0.0
        """By how many nats a token the last server differed, in the mean."""
        self.current: Adapter | None = None
        self._wanted: list[Adapter] = []
        """Those that every server has to serve, oldest first."""
        self._unloaded: list[Adapter] = []
        """Those that no server serves any more, whose folders are still there."""
        self._users: dict[str, int] = {}
        self._counting = threading.Lock()
        pool.admit = self._admit

    def publish(self, model: PeftModel, step: int) -> Adapter:
        """Make the model's adapters a version that every server which is in has proved to serve.

        Nothing where the present version is that of this step. Waits while no server is in. Raises NoServersLeft,
        AdapterError (the folder cannot be written), ServerRefusal.
        """
        if self.current is not None and self.current.step == step:
            return self.current
        text = probe(model, self.text)
        try:
            name, folder = self._write(model, step)
        except OSError as problem:
            raise AdapterError(
                f"the adapters of step {step} cannot be written to {self.folder} ({problem.strerror or problem}); "
                "rollouts.adapter_folder says where"
            ) from problem
        adapter = Adapter(name, step, folder, f"{self.served}/{name}", text)
        self.pool.run(self._give(adapter))
        self.current = adapter
        self._delete()
        self._retire()
        return adapter

    def use(self, adapter: Adapter) -> None:
        """Somebody begins who needs this version; on any thread."""
        with self._counting:
            self._users[adapter.name] = self._users.get(adapter.name, 0) + 1

    def release(self, adapter: Adapter) -> None:
        """They have ended."""
        with self._counting:
            self._users[adapter.name] -= 1

    def close(self) -> None:
        """Unload and delete all versions."""

        async def unload(client: ServerClient) -> None:
            for adapter in self._wanted:
                await client.unload(adapter.name)

        self.pool.run(self.pool.each(unload))
        for adapter in (*self._wanted, *self._unloaded):
            shutil.rmtree(adapter.folder, ignore_errors=True)
        self._wanted, self._unloaded, self.current = [], [], None

    # ------------------------------------------------------------------------------------------------ folders

    def _write(self, model: PeftModel, step: int) -> tuple[str, Path]:
        """Beside the others, synced, then renamed: the name says that it is whole."""
        make_folder(self.folder)
        temporary = self.folder / f"{TEMPORARY}{self.prefix}{step}-{os.getpid()}"
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            save_adapters(model, temporary)
            with (temporary / "adapter_model.safetensors").open("rb") as file:
                checksum = hashlib.file_digest(file, "sha256").hexdigest()[:16]
            name = f"{self.prefix}{step}-{checksum}"
            final = self.folder / name
            if final.is_dir():  # of a run that was stopped here and goes on: names say what is inside
                return name, final
            sync_tree(temporary)
            os.rename(temporary, final)
            sync_folder(self.folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return name, final

    def _retire(self) -> None:
        """Unload what is older than the present version and used by no session."""
        old = [a for a in self._wanted if a is not self.current and not self._users.get(a.name)]
        self._wanted = [a for a in self._wanted if a not in old]
        if not old:
            return

        async def unload(client: ServerClient) -> None:
            for adapter in old:
                await client.unload(adapter.name)

        self.pool.run(self.pool.each(unload))
        self._unloaded += old

    def _delete(self) -> None:
        """Delete what was unloaded when the version before came."""
        for adapter in self._unloaded:
            shutil.rmtree(adapter.folder, ignore_errors=True)
            with self._counting:
                self._users.pop(adapter.name, None)
        self._unloaded = []

    # ------------------------------------------------------------------------------------------------ in its loop

    async def _give(self, adapter: Adapter) -> None:
        self._wanted.append(adapter)
        try:
            await self.pool.each(self._admit)
            await self.pool.take_in()
            await self.pool.wait_for_one()
        except BaseException:
            self._wanted.remove(adapter)
            raise

    async def _admit(self, client: ServerClient) -> None:
        """Load and prove every wanted version; what else of this run is there, from before a crash, goes."""
        proved: set[str] = set()
        while missing := [a for a in self._wanted if a.name not in proved]:
            served = await client.models()
            for adapter in missing:
                if adapter.name not in served:
                    await client.load(adapter.name, adapter.served)
                if adapter is self._wanted[-1] or adapter.name not in served:
                    await self._prove(client, adapter)
                proved.add(adapter.name)
            for name in served:
                if name.startswith(self.prefix) and name not in {a.name for a in self._wanted}:
                    await client.unload(name)

    async def _prove(self, client: ServerClient, adapter: Adapter) -> None:
        """Compare what the server says of the fixed text with what the trainer's policy said of it."""
        request = GenerateRequest(
            model=adapter.name,
            token_ids=adapter.probe.token_ids,
            max_tokens=PROBE_TOKENS,
            request_id=f"probe-{adapter.name}-{os.urandom(4).hex()}",
            temperature=adapter.probe.temperature,
            prompt_logprobs=True,
        )
        answer = await client.generate(request, self.pool.request_timeout_s)
        mean = float(np.abs(np.asarray(answer.prompt_logprobs) - adapter.probe.logprobs).mean())
        if mean > self.tolerance:
            raise ServerRefusal(
                f"what the server {client.url} serves as {adapter.name} is another policy, or in another precision: "
                f"its log-probs differ by {mean:.2g} nats a token from the trainer's, and {self.tolerance:g} are "
                "allowed (rollouts.probe_tolerance); serve model.base in the precision of model.dtype"
            )
        drawn, logprob = answer.token_ids[0], answer.logprobs[0]
        expected = adapter.probe.next_logprobs
        if drawn >= len(expected) or abs(logprob - float(expected[drawn])) > max(10 * self.tolerance, 1e-3):
            raise ServerRefusal(
                f"the log-probs of the server {client.url} are not those at the temperature that its tokens were drawn "
                "at; start it with --logprobs-mode processed_logprobs"
            )
        self.mismatch = mean
