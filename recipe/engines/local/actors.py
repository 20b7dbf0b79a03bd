"""The two Ray actors of the local engine: one serves, one trains, never both at once (colocated)."""

from __future__ import annotations

import asyncio
import json
import queue
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from recipe.engines.local import checkpoint
from recipe.engines.local.model import build_model, load_weights, tiny_config
from recipe.engines.local.policy import Policy
from recipe.engines.local.trainer import Trainer, TrainingSample
from recipe.engines.local.types import GenerateReply, GenerateRequest
from recipe.engines.local.warm_start import Lesson, teach
from recipe.events import EventLog


class PolicyActor:
    """Serves: coroutines put work into one queue, and one thread owns the policy and does it between steps."""

    def __init__(self, max_batch: int, max_length: int, dump: str | None) -> None:
        # More threads than one per actor make everything 4 to 20 times slower when cores are shared.
        torch.set_num_threads(1)
        self._policy = Policy(build_model(tiny_config()), max_batch=max_batch, max_length=max_length)
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._futures: set[asyncio.Future[GenerateReply]] = set()
        self._dump = Path(dump) if dump else None
        threading.Thread(target=self._serve, daemon=True, name="policy").start()

    async def generate(self, request: GenerateRequest) -> GenerateReply:
        """One turn of one session. Raises ValueError when it can't fit, RuntimeError when decoding failed."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[GenerateReply] = loop.create_future()
        self._futures.add(future)

        def resolve(reply: GenerateReply) -> None:
            loop.call_soon_threadsafe(_settle, future, reply)

        try:
            await self._in_thread(lambda: self._policy.submit(request, resolve))
            reply = await future
        except asyncio.CancelledError:
            self._work.put(lambda: self._policy.close_session(request.session_id))
            raise
        finally:
            self._futures.discard(future)
        if self._dump:
            turn = {"session": request.session_id, "prompt_tokens": len(request.ids), "ids": reply.ids}
            with self._dump.open("a", encoding="utf-8") as file:
                file.write(json.dumps(turn) + "\n")
        return reply

    async def close_session(self, session_id: str) -> None:
        await self._in_thread(lambda: self._policy.close_session(session_id))

    async def abort_all(self) -> None:
        """Ends every request in flight with finish 'abort'."""
        await self._in_thread(self._policy.abort_all)

    async def load_weights(self, weights: dict[str, np.ndarray]) -> None:
        """Takes new weights; raises RuntimeError while a request is in flight."""
        await self._in_thread(lambda: self._policy.load_weights(weights))

    async def _in_thread(self, call: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def work() -> None:
            try:
                call()
            except Exception as error:  # noqa: BLE001 - it is raised again where the call was made
                loop.call_soon_threadsafe(done.set_exception, error)
            else:
                loop.call_soon_threadsafe(done.set_result, None)

        self._work.put(work)
        await done

    def _serve(self) -> None:
        while True:
            self._take_work()
            try:
                self._policy.step()
            except Exception as error:  # noqa: BLE001 - every request in flight is told
                self._fail(RuntimeError(f"decoding failed: {error!r}"))

    def _take_work(self) -> None:
        if not self._policy.busy:
            self._work.get()()
        while True:
            try:
                self._work.get_nowait()()
            except queue.Empty:
                return

    def _fail(self, error: RuntimeError) -> None:
        for future in list(self._futures):
            future.get_loop().call_soon_threadsafe(_settle, future, error)
        self._policy.abort_all()


def _settle(future: asyncio.Future[GenerateReply], outcome: GenerateReply | RuntimeError) -> None:
    if future.done():
        return
    if isinstance(outcome, RuntimeError):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


class TrainerActor:
    """Trains: owns the float32 weights, the reference copy and the optimizer."""

    def __init__(self, learning_rate: float, events: str) -> None:
        torch.set_num_threads(1)
        self._learning_rate = learning_rate
        self._events = EventLog(Path(events))
        self._trainer: Trainer | None = None

    def load(self, directory: str) -> None:
        """Starts from a complete directory of weights; the reference is what is loaded."""
        model = build_model(tiny_config())
        shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
        weights = checkpoint.read_weights(Path(directory), shapes)
        load_weights(model, weights)
        self._trainer = Trainer(model, self._learning_rate)

    def warm_start(self, lessons: Sequence[Lesson], seed: int, target: str) -> None:
        """Teaches a fresh model the protocol and writes its weights to the directory `target`."""
        model = teach(lessons, seed, self._report_progress)
        weights = {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}
        checkpoint.write_weights(Path(target), weights)

    def _report_progress(self, step: int, steps: int, loss: float) -> None:
        self._events.write("warm_start", step=step, steps=steps, loss=loss)

    def weights(self) -> dict[str, np.ndarray]:
        return self._loaded.weights()

    def step(self, samples: Sequence[TrainingSample]) -> dict[str, float]:
        return self._loaded.step(samples)

    def save(self, directory: str, rollout: int) -> str:
        """Writes a checkpoint and returns its path."""
        return str(checkpoint.save(Path(directory), rollout, self._loaded.weights()))

    @property
    def _loaded(self) -> Trainer:
        if self._trainer is None:
            raise RuntimeError("the trainer has no weights yet")
        return self._trainer
