"""CAMEL as a Harbor agent: camel-ai's ChatAgent, two shell tools, a model behind an OpenAI-style endpoint.

Import path `recipe.harbor.camel_agent:CamelAgent`. The trial's sandbox runs every command; nothing else is
reached but `api_base`. It fits reinforcement learning on tokens: history is append-only and verbatim, and a
malformed or cut turn ends the trajectory without feedback and without a second try.
"""

from __future__ import annotations

import functools
import ssl
from typing import Any, Literal, override

import httpx
from harbor.agents.base import BaseAgent
from harbor.agents.options import AgentOptions
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext
from pydantic import Field

from recipe.errors import RecipeError
from recipe.harbor.camel_library import CAMEL_VERSION, ChatAgent
from recipe.harbor.camel_model import SequenceLimitError, VerbatimModel
from recipe.harbor.camel_record import TrialRecord
from recipe.harbor.camel_tools import SandboxLostError, ShellTools

SYSTEM_PROMPT = "You are a terminal agent. Do the task with the tools, then reply with a short final message."

SAMPLING = {"max_tokens", "temperature", "top_p", "top_k", "skip_special_tokens", "no_stop_trim"}


class CamelOptions(AgentOptions):
    """The agent's keyword arguments; an unknown one is refused when the trial is created (ValueError)."""

    api_base: str = Field(description="URL that `/chat/completions` is appended to")
    max_iterations: int = Field(ge=1, description="turns (model calls) of the trial at most")
    max_seq_len: int | None = Field(None, ge=1, description="prompt and reply tokens that end the trial")
    request_timeout: float = Field(3600, gt=0, description="seconds of one model call at most")
    max_tokens: int | None = Field(None, ge=1, description="tokens of one reply at most")
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    skip_special_tokens: bool | None = None
    no_stop_trim: bool | None = None
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
            async with self._http() as http:
                await self._converse(instruction, environment, record, http)

    async def _converse(
        self, instruction: str, environment: BaseEnvironment, record: TrialRecord, http: httpx.AsyncClient
    ) -> None:
        options = self.options
        sampling = options.model_dump(include=SAMPLING, exclude_none=True)
        model = VerbatimModel(
            self._parsed_model_name or "model",
            http,
            record,
            sampling=sampling,
            max_seq_len=options.max_seq_len,
        )
        tools = ShellTools(environment, record).tools()
        record.write(tools=[tool.get_openai_tool_schema() for tool in tools], sampling=sampling)
        agent = _chat_agent(model, tools, options.max_iterations)
        try:
            await agent.astep(instruction)
        except SequenceLimitError:
            record.end("context")
        except SandboxLostError as lost:
            raise RecipeError("the sandbox could not run a command", found=lost) from lost
        if not record.ended:
            model.append(agent.chat_history)  # the last calls' results, which no further request carries
            record.end("max_iterations")

    def _http(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=self.options.api_base,
            timeout=self.options.request_timeout,
            trust_env=False,  # a proxy of the host has no business between the agent and its model
            verify=_tls(),
            # A kept connection may be closed by the server at the very moment of the next turn, which would
            # fail a call that must not be repeated; a new one costs less than a millisecond.
            limits=httpx.Limits(max_keepalive_connections=0),
        )


@functools.cache
def _tls() -> ssl.SSLContext:
    """Shared: reading the certificates costs 23 ms of CPU, which each trial would pay."""
    return httpx.create_ssl_context()


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
