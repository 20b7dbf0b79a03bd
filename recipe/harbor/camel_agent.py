"""CAMEL as a Harbor agent: camel-ai's ChatAgent, two shell tools, a model behind an OpenAI-style endpoint.

Import path `recipe.harbor.camel_agent:CamelAgent`. The trial's sandbox runs every command; nothing else is
reached but `api_base`. It fits reinforcement learning on tokens: history is append-only and verbatim, and a
malformed or cut turn ends the trajectory without feedback and without a second try.
"""

from __future__ import annotations

import contextlib
from typing import Any, Literal, override

from harbor.agents.base import BaseAgent
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext
from pydantic import Field

from recipe.errors import RecipeError
from recipe.harbor.camel_library import CAMEL_VERSION, ChatAgent
from recipe.harbor.camel_model import VerbatimModel
from recipe.harbor.camel_tools import SandboxLostError, ShellTools
from recipe.harbor.model_client import ConversationEndedError, ModelClient, ModelOptions, http_client
from recipe.harbor.trial_record import TrialRecord

SYSTEM_PROMPT = "You are a terminal agent. Do the task with the tools, then reply with a short final message."


class CamelOptions(ModelOptions):
    response_feedback: Literal[False] = Field(False, description="production sends it; only off exists")
    max_response_feedback: Literal[0] = 0


class CamelAgent(BaseAgent):
    """Harbor builds it: AgentConfig(import_path=..., model_name="openai/<name>", kwargs=<CamelOptions>)."""

    options_model = CamelOptions
    options: CamelOptions

    @staticmethod
    @override
    def name() -> str:
        return "camel"

    @override
    def version(self) -> str:
        return str(CAMEL_VERSION)

    @override
    def _parse_model_name(self, model_name: str) -> tuple[str | None, str]:
        # The base class asks LiteLLM: seconds of import, 100 MB, and a download of prices.
        return "openai", model_name.removeprefix("openai/")

    @override
    async def setup(self, environment: BaseEnvironment) -> None:
        """Nothing to install: the agent runs out here, its commands in the sandbox."""

    @override
    async def set_web_tools_disabled(self, disabled: bool, environment: BaseEnvironment) -> None:
        """There are no web tools; the base class would log an error about that in every trial."""

    @override
    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        """Fills `context` while it runs (see TrialRecord). Raises RecipeError when model or sandbox fails."""
        with TrialRecord(context, self.logs_dir / "trajectory.jsonl") as record:
            async with http_client(self.options) as http:
                client = ModelClient(self.model_name or "model", http, record, self.options)
                await self._converse(instruction, environment, record, client)

    async def _converse(
        self, instruction: str, environment: BaseEnvironment, record: TrialRecord, client: ModelClient
    ) -> None:
        model = VerbatimModel(client, record)
        tools = ShellTools(environment, record).tools()
        record.write(tools=[tool.get_openai_tool_schema() for tool in tools], sampling=self.options.sampling)
        agent = _chat_agent(model, tools, self.options.max_iterations)
        try:
            with contextlib.suppress(ConversationEndedError):
                await agent.astep(instruction)
        except SandboxLostError as lost:
            raise RecipeError("the sandbox could not run a command", found=lost) from lost
        if not record.ended:
            model.append(agent.chat_history)  # the last calls' results, which no further request carries
            record.end("max_iterations")


def _chat_agent(model: VerbatimModel, tools: list[Any], max_iterations: int) -> ChatAgent:
    """ChatAgent with everything off that rewrites history, calls the model again or stops by the clock."""
    return ChatAgent(
        SYSTEM_PROMPT,
        model=model,
        tools=tools,
        max_iteration=max_iterations,
        token_limit=10**9,  # the server's refusal is the limit
        summarize_threshold=None,
        retry_attempts=1,
        step_timeout=None,
        tool_execution_timeout=None,
    )
