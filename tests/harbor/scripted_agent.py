"""A Harbor agent that does what its options say: the tests' stand-in for a policy."""

from __future__ import annotations

import asyncio
from typing import Any, override

from harbor.agents.base import BaseAgent
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext

IMPORT_PATH = "scripted_agent:ScriptedAgent"


class ScriptedAgent(BaseAgent):
    """`commands` run in the sandbox one by one, then `sleep` seconds pass, then `fails` is raised or it ends."""

    def __init__(
        self,
        *args: Any,
        commands: tuple[str, ...] = (),
        sleep: float = 0,
        fails: str | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._commands, self._sleep, self._fails, self._metadata = commands, sleep, fails, metadata

    @staticmethod
    @override
    def name() -> str:
        return "scripted"

    @override
    def version(self) -> str:
        return "1"

    @override
    async def setup(self, environment: BaseEnvironment) -> None:
        pass

    @override
    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        context.metadata = self._metadata
        for command in self._commands:
            done = await environment.exec(command)
            with (self.logs_dir / "said.txt").open("a") as log:
                log.write(f"{done.stdout}{done.stderr}")
        await asyncio.sleep(self._sleep)
        if self._fails is not None:
            raise {"TypeError": TypeError, "TimeoutError": TimeoutError}[self._fails]("as scripted")
