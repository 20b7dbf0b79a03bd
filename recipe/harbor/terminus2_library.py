"""The parts of Harbor's Terminus-2 that the agent uses, imported without a request to the network."""

from __future__ import annotations

import os

# Terminus-2's module imports litellm, which would otherwise download a list of prices.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

from harbor.agents.terminus_2.terminus_2 import Command, Terminus2
from harbor.agents.terminus_2.terminus_json_plain_parser import (
    ParseResult,
    TerminusJSONPlainParser,
)
from harbor.agents.terminus_2.tmux_session import TmuxSession
from harbor.llms.base import BaseLLM, LLMResponse
from harbor.llms.chat import Chat

__all__ = [
    "BaseLLM",
    "Chat",
    "Command",
    "LLMResponse",
    "ParseResult",
    "Terminus2",
    "TerminusJSONPlainParser",
    "TmuxSession",
]
