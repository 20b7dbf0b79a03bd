"""Harbor's Terminus-2, changed where it does not fit reinforcement learning on tokens.

Upstream asks again after a cut reply and up to 27 times after an error; it rewrites history when that grows too
long. Here every model call counts, and is made once. And nothing that the policy writes or does to its terminal
raises an error: that would be a failure of ours, which drops the trial, and so a way around a bad reward.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, override

from recipe.errors import RecipeError
from recipe.harbor.model_client import ConversationEndedError, ModelClient
from recipe.harbor.terminus2_library import (
    BaseLLM,
    Chat,
    Command,
    LLMResponse,
    ParseResult,
    Terminus2,
    TerminusJSONPlainParser,
    TmuxSession,
)
from recipe.harbor.trial_record import TrialRecord


class VerbatimLLM(BaseLLM):
    """`client`'s conversation, as Terminus-2's model. `replay_reasoning`: whether replies keep their reasoning.

    Raises what `client` does, ConversationEndedError for a reply that is cut or fills the context, and
    RecipeError when Terminus-2 changed what was already sent.
    """

    def __init__(self, client: ModelClient, record: TrialRecord, *, replay_reasoning: bool) -> None:
        self._client = client
        self._record = record
        self._replay_reasoning = replay_reasoning

    @override
    async def call(self, prompt: str, message_history: list[Any] | None = None, **_: Any) -> LLMResponse:
        if len(message_history or []) != len(self._client.history):
            raise RecipeError("Terminus-2 changed the conversation", expected="one prompt appended to it")
        self._client.append([{"role": "user", "content": prompt}])
        choice = await self._client.ask()
        if not self._replay_reasoning:
            self._client.history[-1].pop("reasoning_content", None)
        if choice.finish_reason == "length" or self._client.full:
            self._record.end("length" if choice.finish_reason == "length" else "context")
            raise ConversationEndedError
        # Only what Terminus-2 acts on: its own record of a reply can't hold lone surrogates.
        return LLMResponse(content=(choice.message.content or "").encode(errors="replace").decode())

    @override
    def get_model_context_limit(self) -> int:
        raise NotImplementedError("only summaries ask for it")

    @override
    def get_model_output_limit(self) -> int | None:
        raise NotImplementedError("only repeated calls ask for it")


class TotalParser(TerminusJSONPlainParser):
    """Harbor's parser, for which every reply is valid or a parse error."""

    @override
    def parse_response(self, response: str) -> ParseResult:
        try:
            result = super().parse_response(response)
            _check_text(result)
        except Exception as error:  # noqa: BLE001 (endless nesting, endless numbers, lone surrogates...)
            return ParseResult([], is_task_complete=False, error=f"Invalid JSON: {error}", warning="")
        return result


def _check_text(result: ParseResult) -> None:
    """Raises ValueError for keystrokes that nobody can type, and for what could not be sent back."""
    keystrokes = "".join(command.keystrokes for command in result.commands)
    if "\0" in keystrokes:
        raise ValueError("keystrokes can't hold NUL")
    f"{keystrokes}{result.analysis}{result.plan}{result.error}{result.warning}".encode()


class OneShotTerminus2(Terminus2):
    """Terminus-2 in `terminal`, which ends with its first model call that fails; `record` says how it ended."""

    def __init__(
        self, model: VerbatimLLM, record: TrialRecord, terminal: TmuxSession, max_turns: int, logs_dir: Path
    ) -> None:
        self._policy = model
        self._record = record
        self._complete = False
        super().__init__(
            logs_dir,
            "openai/model",
            max_turns=max_turns,
            suppress_max_turns_warning=True,
            enable_summarize=False,
            record_terminal_session=False,
        )
        self._session = terminal

    def how_it_ended(self) -> str:
        """After a run that raised nothing, which leaves it open."""
        if self._complete:
            return "done"
        return "max_iterations" if self._record.metrics["turns"] == self._max_episodes else "terminal_closed"

    @override
    def _init_llm(self, *_: Any, **__: Any) -> BaseLLM:
        return self._policy

    @override
    def _get_parser(self) -> TotalParser:
        return TotalParser()  # type: ignore[no-untyped-call]

    @override
    async def _query_llm(self, chat: Chat, prompt: str, *_: Any, **__: Any) -> LLMResponse:  # type: ignore[override]
        return await chat.chat(prompt)

    @override
    async def _handle_llm_interaction(self, *arguments: Any, **keywords: Any) -> Any:
        asked_before = self._pending_completion  # a task is complete when that is said twice
        reply = await super()._handle_llm_interaction(*arguments, **keywords)
        self._complete = asked_before and reply[1]
        return reply

    @override
    async def _execute_commands(self, commands: list[Command], session: TmuxSession) -> tuple[bool, str]:
        self._record.metrics["tool_calls"] += len(commands)
        with self._record.timed("env_execution_time_sum"):
            try:
                return await super()._execute_commands(commands, session)
            except RuntimeError as error:  # tmux took no more keys: the policy ended it, or its own session
                self._record.end("terminal_closed")
                raise ConversationEndedError from error

    @override
    def _dump_trajectory(self) -> None:
        """Upstream rewrites a file of everything every turn; TrialRecord has all of it."""
