"""A run while it lasts: what it was given, what it has started so far, and what the job needs to be ready."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Protocol

from recipe.harbor.server import AgentServer, start_agent_server
from recipe.job import RayAddress
from recipe.process import ProcessGroup
from recipe.run.display import Display
from recipe.run.folder import RunFolder
from recipe.run.interrupts import Interrupts
from recipe.run.manifest import Manifest
from recipe.settings import Settings


class Part(Protocol):
    def stop(self) -> None: ...


@dataclass
class Run:
    """One run of the launcher. What `begin` has started is stopped by `running.close()`, last first."""

    settings: Settings
    folder: RunFolder
    manifest: Manifest
    interrupts: Interrupts
    display: Display
    running: ExitStack = field(default_factory=ExitStack)

    def begin[P: Part](self, start: Callable[[], P]) -> P:
        """Starts a part. A signal waits until the part is sure to be stopped."""
        with self.interrupts.held():
            part = start()
            self.running.callback(part.stop)
        return part

    def serve(self, env: Mapping[str, str], **of_engine: Any) -> AgentServer:
        """Starts the agent server, which ends with the run; `of_engine` as `start_agent_server` takes it."""
        settings = self.settings
        # It waits for the server, and ends it itself when a signal comes meanwhile.
        server = start_agent_server(
            tasks_dir=settings.tasks_dir,
            trials_dir=self.folder.trials,
            agent=settings.agent,
            backend=settings.sandbox_backend,
            host=settings.agent_server_host,
            port=settings.agent_server_port,
            max_concurrent=settings.agent_max_concurrent,
            agent_timeout_multiplier=settings.harbor_agent_timeout_multiplier,
            log=self.folder.agent_server_log,
            env=env,
            watch=self.interrupts.check,
            say=self.display.note,
            **of_engine,
        )
        self.running.callback(server.stop)
        return server


@dataclass(frozen=True)
class Prepared:
    """What the job is handed to, and the processes whose end is the end of the run."""

    ray: RayAddress
    server: AgentServer
    watched: Sequence[ProcessGroup]
