"""Assemble the inference engine's process from a run's configuration, and run it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, TypeVar

import torch
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ....configs.schema import RunConfig
from ....rewards.orchestrator import RewardOrchestrator
from ...agents.remote.agent import RemoteAgent, open_remote_agent
from ...agents.remote.pool import record_change
from ...agents.transformers_agent import TransformersAgent
from ...record.step_recorder import record_vocabulary
from ...record.wandb_sink import WandbSink
from ...rollouts.dataset import load_rows
from ...rollouts.judging import make_judge, special_texts
from ...rollouts.runner import DataError, RolloutRunner, prepares
from ...runs.control.requests import ControlChannel
from ...runs.paths import OnlineFolder
from ...runs.write.writer import RunWriter
from ...training.checkpoints import load_rewards
from ..process import load_serving_policy, serving_agent, serving_settings
from ..store.opening import open_store
from ..store.snapshots import SnapshotReader
from ..store.update_log import UpdateLogs
from ..store.update_queue import QueueError, Trouble, UpdateQueue
from .backend import EngineBackend
from .enqueuer import Enqueuer
from .experience_buffer import ExperienceBuffer
from .http.conversation import Uploads
from .inference_engine import InferenceEngine
from .record_keeper import RecordKeeper
from .requests import Request, RequestSource, parse_line, read_requests
from .server import AnswerServer
from .serving import Serving
from .watching import ValidationProcess
from .weights import PooledWeights, WeightFollower

log = logging.getLogger(__name__)
T = TypeVar("T")

AGAIN_S = 1.0
"""Pause before another attempt after a disk error."""
SAVE_EVERY_S = 10.0
"""Interval between saves of the experience buffer. A kill loses at most this much of it."""
TOKEN_VARIABLE = "GRPO_TUI_TOKEN"


def serve(
    config: RunConfig,
    run_dir: Path,
    writer: RunWriter,
    control: ControlChannel,
    resume: bool,
    *,
    engine_class: type[InferenceEngine] = InferenceEngine,
) -> bool:
    """Serve until there are no more requests (returns True) or the run is stopped (returns False)."""
    online = config.online
    writer.event("phase", "The policy is being loaded.", name="loading")
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) - online.updates))  # leave one core to the worker
    torch.manual_seed(config.seed)
    with contextlib.ExitStack() as closing:  # closes in reverse order
        parts = _Parts(config, writer, OnlineFolder(run_dir), closing)
        # What can be refused is looked at before the policy is loaded, which takes long.
        server, file = parts.server(), online.requests
        pipe = _Pipe.take() if file == "-" else None
        asked = () if file is None or pipe else read_requests(Path(file).expanduser(), config.environment)
        folder, store, problem = parts.folder, parts.store, parts.problem
        # Two connections, so that reading never waits for a write that a stopped worker holds up.
        engine_queue = patiently(store.open_engine_queue, control, problem)
        if engine_queue is None:
            return False
        closing.callback(engine_queue.close)
        queue = store.open_engine_queue()
        closing.callback(queue.close)
        validation = parts.validation(queue)
        reader = store.reader()
        keeper = parts.record_keeper(queue)
        closing.callback(store.link(queue))
        model, tokenizer = load_serving_policy(config)
        buffer = parts.earlier_experiences() if resume else ExperienceBuffer()
        closing.enter_context(_saved_periodically(buffer, folder.buffer))
        agent, follower = parts.policy(model, tokenizer, reader)
        closing.callback(follower.stop)
        engine = parts.engine(engine_class, agent, tokenizer, buffer)
        follower.look()
        follower.start()
        source = _source(config, tokenizer, asked, pipe)
        if server is not None:
            parts.start_server(server, EngineBackend(config, folder, source, engine, follower))
            if patiently(partial(_write_address, folder.address, server), control, problem) is None:
                return False
        record_vocabulary(writer, tokenizer)
        serving = Serving(
            engine=engine,
            source=source,
            follower=follower,
            keeper=keeper,
            enqueuer=Enqueuer(engine_queue, tell=problem),
            control=control,
            validation=validation,
            server_wait_s=config.rollouts.server_wait_s,
            print_line=None if pipe is None else pipe.write,
        )
        writer.status("running", step=serving.answered, total_steps=serving.last)
        return serving.run()


def patiently(act: Callable[[], T], control: ControlChannel, tell: Callable[[str], None]) -> T | None:
    """Return the result of `act` once the disk allows it; None if the run ends first."""
    trouble = Trouble(tell)
    while True:
        try:
            done = act()
            trouble.ends("The disk can be written to again: serving continues.")
            return done
        except (QueueError, OSError) as error:
            trouble.begins(f"{error} Serving waits until this is fixed.")
        if any(command.command == "stop" for command in control.poll()):
            return None
        time.sleep(AGAIN_S)


@dataclass
class _Parts:
    """Makes the parts of the engine's process. closing: closes them in reverse order."""

    config: RunConfig
    writer: RunWriter
    folder: OnlineFolder
    closing: contextlib.ExitStack

    def __post_init__(self) -> None:
        self.store = open_store(self.folder, self.config.online, self.problem)

    def problem(self, message: str) -> None:
        self.writer.event("alert", message, detector="serving")
        log.warning("%s", message)

    def loading(self, message: str) -> None:
        self.writer.event("phase", message, name="loading")

    def validation(self, queue: UpdateQueue) -> ValidationProcess | None:
        """Start validation if it is on. It runs while the policy loads here."""
        if not self.config.online.updates or not self.config.online.validation.enabled:
            return None
        validation = ValidationProcess(self.folder, queue, self.problem)
        self.closing.callback(validation.stop)
        validation.keep_alive()
        return validation

    def record_keeper(self, queue: UpdateQueue) -> RecordKeeper:
        config, run_dir = self.config, self.writer.run_dir
        wandb = WandbSink(config.logging, run_dir, run_id=run_dir.name, name=config.name, on_problem=self.problem)
        self.closing.callback(wandb.close)
        keeper = RecordKeeper(
            self.writer,
            queue,
            config.online.kl,
            sinks=[wandb],
            tokens=config.logging.record_tokens,
            engine=self.store.name,
            logs=None if config.online.is_shared else UpdateLogs(run_dir),
        )
        self.closing.callback(keeper.finish)  # after the last look at a shared queue
        return keeper

    def policy(
        self, model: PeftModel | PreTrainedModel, tokenizer: PreTrainedTokenizerBase, reader: SnapshotReader
    ) -> tuple[TransformersAgent | RemoteAgent, WeightFollower]:
        """Return the agent that answers, here or on rollout servers, and the follower of its weights."""
        config, online = self.config, self.config.online
        if config.rollouts.engine == "transformers":
            agent = serving_agent(config, model, tokenizer)
            return agent, WeightFollower(model, reader, poll_s=online.poll_interval_s, on_problem=self.problem)
        remote = open_remote_agent(
            config,
            model,
            tokenizer,
            serving_settings(config),
            self.writer.run_dir,
            name=self.store.name.replace("/", "-"),
            counted="v",
            request_timeout_s=min(config.rollouts.request_timeout_s, online.request_timeout_s),
            wait_s=0.0,  # `Serving` does the waiting, because it can still be stopped
        )

        remote.pool.tell = partial(record_change, self.writer.event)
        return remote, PooledWeights(remote, reader, poll_s=online.poll_interval_s, on_problem=self.problem)

    def engine(
        self,
        engine_class: type[InferenceEngine],
        agent: TransformersAgent | RemoteAgent,
        tokenizer: PreTrainedTokenizerBase,
        buffer: ExperienceBuffer,
    ) -> InferenceEngine:
        config = self.config
        orchestrator = RewardOrchestrator(config=config.rewards, seed=config.seed)
        known = self._load_reward_state(orchestrator)
        prepare = prepares(config.environment, self.writer)
        return engine_class(
            agent.model,
            RolloutRunner(agent, tokenizer, config.online.samples, prepare=prepare),
            orchestrator,
            config.online,
            buffer=buffer,
            learn_statistics=not known,
            seed=config.seed,
            images=self.store.images if agent.sees else None,
            name=self.store.name,
            judge=make_judge(config.environment, [], special_texts(tokenizer)),
        )

    def earlier_experiences(self) -> ExperienceBuffer:
        """Return the saved buffer of a resumed run. Serving does not depend on it, so a lost one starts empty."""
        buffer, path = ExperienceBuffer(), self.folder.buffer
        if not path.exists():
            self.loading("There is no memory of earlier experiences. It starts empty.")
            return buffer
        try:
            buffer.load(path)
        except (OSError, ValueError) as error:
            self.problem(f"The memory of earlier experiences is lost ({error}). It starts empty.")
        return buffer

    def _load_reward_state(self, orchestrator: RewardOrchestrator) -> bool:
        """Load the reward statistics and the dynamics model of offline training. Returns whether they exist.

        They stay fixed, so that rewards have the same meaning as in training. Without them, both are learned here.
        """
        folder = Path(self.config.model.sft_adapters or "").expanduser()
        if not (folder / "rewards.json").is_file():
            self.loading("No saved reward statistics: the run starts with empty ones.")
            return False
        load_rewards(orchestrator, folder)
        self.loading(f"Reward statistics loaded from {folder}.")
        return True

    def server(self) -> AnswerServer | None:
        """Return the HTTP server, which accepts no connections yet; None if the run has none."""
        online = self.config.online
        if online.serve is None:
            return None
        server = AnswerServer(
            online.serve,
            tokens=os.environ.get(TOKEN_VARIABLE, "").split(),
            certificate=Path(online.tls_certificate).expanduser() if online.tls_certificate else None,
            key=Path(online.tls_key).expanduser() if online.tls_key else None,
        )
        self.closing.callback(server.close)
        return server

    def start_server(self, server: AnswerServer, backend: EngineBackend) -> None:
        folder = self.folder
        shown = tuple(Path(f).expanduser().resolve() for f in self.config.online.image_folders)
        server.start(backend, Uploads(folder.run_dir / "images" / "uploads", shown))
        log.info("answering on %s", server.url)
        self.closing.callback(folder.address.unlink, missing_ok=True)
        self.closing.callback(server.stop)


@contextlib.contextmanager
def _saved_periodically(buffer: ExperienceBuffer, path: Path) -> Iterator[None]:
    """Save the buffer regularly on a thread, and one last time at the end."""
    ended = threading.Event()

    def save() -> None:
        saved, ending = buffer.added, False
        while not ending:
            ending = ended.wait(SAVE_EVERY_S)
            if ending or buffer.added != saved:
                saved = buffer.added
                with contextlib.suppress(OSError):  # a full disk: try again next time
                    buffer.save(path)

    thread = threading.Thread(target=save, name="experiences", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(timeout=30)


@dataclass(frozen=True)
class _Pipe:
    """Requests and answers as JSON lines."""

    input: IO[bytes]
    output: IO[str]
    _writing: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def take(cls) -> _Pipe:
        """Take standard input and output from all other code: an environment, and the programs that it runs, get an
        empty input, and the log as their output."""
        pipe = cls(os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "w"))
        with open(os.devnull, "rb") as empty:
            os.dup2(empty.fileno(), 0)
        os.dup2(2, 1)
        return pipe

    def read(self, source: RequestSource, config: RunConfig) -> None:
        """Read all requests. The answer to an invalid line is its error."""
        for number, line in enumerate(self.input, 1):  # bytes, so that one wrongly encoded line does not end reading
            if not line.strip():
                continue
            try:
                source.submit(parse_line(line, config.environment, f"line {number}"), wait=True)
            except DataError as error:
                self.write({"error": str(error), "line": number})
        source.close()

    def write(self, values: Mapping[str, object]) -> None:
        """Write one line. If the reader has closed the pipe, learning continues."""
        with self._writing, contextlib.suppress(BrokenPipeError):
            print(json.dumps(dict(values)), file=self.output, flush=True)


def _source(
    config: RunConfig, tokenizer: PreTrainedTokenizerBase, asked: Sequence[Request], pipe: _Pipe | None
) -> RequestSource:
    """Return the source of requests. asked: the requests of a file."""
    online = config.online
    if pipe is not None:
        source = RequestSource(open_ended=True, max_waiting=256)
        threading.Thread(target=pipe.read, args=(source, config), name="stdin", daemon=True).start()
        return source
    rows: Iterable[Request] = asked
    if online.requests is None and online.serve is None:
        rows = map(Request, load_rows(config.environment, "train", config.seed, tokenizer, config.data))
    return RequestSource(rows, open_ended=online.serve is not None, max_waiting=online.max_waiting)


def _write_address(path: Path, server: AnswerServer) -> bool:
    """Write the engine's address to a file that only its owner can read. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump({"url": server.url, "certificate": server.certificate}, file)
    return True
