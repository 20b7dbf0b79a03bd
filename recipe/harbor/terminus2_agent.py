"""Terminus-2 as a Harbor agent for training: Harbor's prompt, JSON commands and tmux, one try per model call.

Import path `recipe.harbor.terminus2_agent:Terminus2Agent`. The sandbox must have tmux; nothing else is reached
but `api_base`. A cut reply or a full context ends the trial, and so does a terminal that the policy closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
from pathlib import Path
from typing import override

from harbor.agents.base import BaseAgent
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext
from pydantic import Field

from recipe.errors import RecipeError
from recipe.harbor.model_client import ConversationEndedError, ModelClient, ModelOptions, http_client
from recipe.harbor.quiet_terminal import QuietTerminal
from recipe.harbor.terminus2_library import TmuxSession
from recipe.harbor.terminus2_loop import OneShotTerminus2, VerbatimLLM
from recipe.harbor.trial_record import TrialRecord

# Until the shell's prompt is there, some 10 ms; without the wait, a first prompt would hold it by chance only.
PROMPT_TRIES = 500
PROMPT_SECONDS = 0.02  # between two tries


class Terminus2Options(ModelOptions):
    interleaved_thinking: bool = Field(True, description="replay each reply's reasoning_content")
    until_quiet: bool = Field(False, description="look at the terminal when it is quiet, not by the clock")


class Terminus2Agent(BaseAgent):
    """Harbor builds it: AgentConfig(import_path=..., model_name="openai/<name>", kwargs=<Terminus2Options>)."""

    options_model = Terminus2Options
    options: Terminus2Options

    @staticmethod
    @override
    def name() -> str:
        return "terminus-2"

    @override
    def version(self) -> str:
        return importlib.metadata.version("harbor")

    @override
    def _parse_model_name(self, model_name: str) -> tuple[str | None, str]:
        # The base class asks LiteLLM, which knows nothing of this model.
        return "openai", model_name.removeprefix("openai/")

    @override
    async def set_web_tools_disabled(self, disabled: bool, environment: BaseEnvironment) -> None:
        """There are no web tools; the base class would log an error about that in every trial."""

    @override
    async def setup(self, environment: BaseEnvironment) -> None:
        """Opens the terminal. Raises RuntimeError without tmux, RecipeError when no shell comes up in it."""
        terminal = QuietTerminal if self.options.until_quiet else TmuxSession
        self._terminal = terminal(
            session_name=self.name(),
            environment=environment,
            logging_path=Path("/dev/null"),  # of all that the terminal shows: nothing bounds a flood
            local_asciinema_recording_path=None,
            remote_asciinema_recording_path=None,
            user=environment.default_user,
        )
        await self._terminal.start()
        for _ in range(PROMPT_TRIES):
            if (await self._terminal.capture_pane()).strip():
                return
            await asyncio.sleep(PROMPT_SECONDS)
        raise RecipeError("the sandbox's terminal shows no shell's prompt")

    @override
    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        """Fills `context` while it runs (see TrialRecord). Raises RecipeError when model or sandbox fails."""
        options = self.options
        with TrialRecord(context, self.logs_dir / "trajectory.jsonl") as record:
            record.write(sampling=options.sampling)
            async with http_client(options) as http:
                client = ModelClient(self.model_name or "model", http, record, options)
                model = VerbatimLLM(client, record, replay_reasoning=options.interleaved_thinking)
                terminus = OneShotTerminus2(
                    model, record, self._terminal, options.max_iterations, self.logs_dir
                )
                with contextlib.suppress(ConversationEndedError):
                    await terminus.run(instruction, environment, AgentContext())
                    record.end(terminus.how_it_ended())
