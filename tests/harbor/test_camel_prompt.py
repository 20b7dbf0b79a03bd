"""What a trial of a smoke task begins with, in Inkling's tokens."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from harbor.models.agent.context import AgentContext
from scripted_model import Shell, reply, serve
from tml_renderers import chat, tokenizers, v0

from recipe.harbor.camel_agent import CamelAgent

SMOKE = Path(__file__).parents[2] / "recipe" / "tasks" / "smoke"
EFFORT = 0.9  # production's default
BUDGET = 200  # the local engine prefills it on a CPU at the start of every trial


@pytest.fixture(scope="module")
def renderer() -> v0.Renderer:
    return v0.Renderer(tokenizers.O200kBaseChatTokenizer())


def first_request(instruction: str, folder: Path) -> dict[str, Any]:
    with serve(reply(content="Done.")) as script:
        agent = CamelAgent(folder, "openai/tiny", api_base=script.url, max_iterations=1)
        asyncio.run(agent.run(instruction, Shell(folder), AgentContext()))
    return script.requests[0]


def tokens(request: dict[str, Any], renderer: v0.Renderer) -> int:
    """Tokens of tools, system prompt, effort line and instruction, and of the marker that the model continues."""
    declared = [tool["function"] for tool in request["tools"]]
    tools = [
        chat.ToolSpecJson("function", tool["name"], tool["description"], tool["parameters"])
        for tool in declared
    ]
    kinds = {"system": chat.AuthorKind.System, "user": chat.AuthorKind.User}
    author = chat.Author(chat.AuthorKind.System, "tool_declare")
    messages = [chat.Message(content=chat.ToolDeclareJson(tools), author=author)]
    for message in request["messages"]:
        author = chat.Author(kinds[message["role"]], None)
        messages.append(chat.Message(content=chat.Text(message["content"]), author=author))
    spans, _ = renderer.render_for_completion_with_effort(messages, EFFORT)
    return sum(len(span.span.tokens) for span in spans) + 1


@pytest.mark.parametrize("task", sorted(path.name for path in SMOKE.iterdir()))
def test_the_first_prompt_of_a_smoke_task_stays_within_its_budget(
    task: str, tmp_path: Path, renderer: v0.Renderer
) -> None:
    instruction = (SMOKE / task / "instruction.md").read_text()
    count = tokens(first_request(instruction, tmp_path), renderer)
    print(f"{task}: {count} tokens")
    assert 100 < count <= BUDGET
