"""The warm start's weights: cached under a key of all that shapes them, else made from real scripted trials.

Each behaviour of each smoke task is played by a scripted policy behind the session server in a real trial: real
agent, real prompts, real sandbox, real verifier. The trajectories that the sessions recorded are the lessons.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import recipe
from recipe.engines.local import checkpoint, model, rendering
from recipe.engines.local.rollout import request_kwargs
from recipe.engines.local.session_server import SessionServer
from recipe.engines.local.sessions import SessionStore
from recipe.engines.local.types import GenerateReply, GenerateRequest
from recipe.engines.local.warm_start import Lesson
from recipe.errors import RecipeError
from recipe.events import EventLog
from recipe.plugins import agent
from recipe.settings import Settings
from recipe.tasks.prompts import Row, read_prompt_data
from recipe.tasks.smoke_behaviours import SMOKE_BEHAVIOURS, Behaviours

# Code that shapes what a trial's prompts and tool outputs look like, or how they are taught.
SOURCES = ("harbor", "tasks", "engines/local", "plugins")
PACKAGES = ("camel-ai", "harbor", "tml-renderers", "torch", "transformers")
FINAL_MESSAGE = "Done."
# How long Terminus-2 waits for a command's output; the smoke tasks' commands end within milliseconds.
KEY_SECONDS = 0.1
# The shares of what is taught: about 0.4 right leaves reward to be learned and every group a spread.
RIGHT, RIGHT_CHECKED, WRONG, WRONG_CHECKED, GIVES_UP = 0.24, 0.16, 0.21, 0.12, 0.06


async def warm_start_weights(settings: Settings, trainer: Any, events: EventLog) -> Path:
    """The directory of the warm start's weights; built by `trainer` when the cache has none for this key."""
    rows = read_prompt_data(settings.prompt_data)
    target = settings.cache_dir / "warm-start" / cache_key(settings, rows)
    if not checkpoint.is_complete(target):
        events.write("phase", phase="warm_start", rollout=None)
        lessons = await harvest(settings, rows, events)
        await trainer.warm_start.remote(lessons, settings.seed, str(target))
    return target


def cache_key(settings: Settings, rows: Sequence[Row]) -> str:
    """A hash of the tasks, the code and versions that render and teach them, the configuration and the seed."""
    package = Path(recipe.__file__).parent
    tasks = [settings.tasks_dir / row.label for row in rows]
    digest = hashlib.sha256()
    for path in sorted(_files([*tasks, *(package / source for source in SOURCES)])):
        digest.update(f"{path.name}\0".encode() + path.read_bytes() + b"\0")
    facts = {
        "versions": {name: version(name) for name in PACKAGES},
        "config": model.tiny_config().to_dict(),
        "seed": settings.seed,
        "turns": settings.harbor_agent_max_iterations,
        "agent": settings.agent,
    }
    digest.update(json.dumps(facts, sort_keys=True, default=str).encode())
    return digest.hexdigest()[:24]


def _files(roots: Sequence[Path]) -> Iterator[Path]:
    for root in roots:
        for path in root.rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path


class ScriptedPolicy:
    """Plays a fixed list of turns in each session, token by token as the model is to say them."""

    def __init__(self) -> None:
        self._turns: dict[str, list[list[int]]] = {}

    def play(self, session_id: str, turns: list[list[int]]) -> None:
        self._turns[session_id] = list(turns)

    async def generate(self, request: GenerateRequest) -> GenerateReply:
        ids = self._turns[request.session_id].pop(0)
        return GenerateReply(ids=ids, logprobs=[0.0] * len(ids), routes=None, finish="stop")

    async def close_session(self, session_id: str) -> None:
        self._turns.pop(session_id, None)


async def harvest(settings: Settings, rows: Sequence[Row], events: EventLog) -> list[Lesson]:
    """Plays every behaviour of every row's task in a real trial. Raises RecipeError on an unexpected reward."""
    policy = ScriptedPolicy()
    sessions = SessionServer(SessionStore(policy, max_context=settings.max_seq_len, agent=settings.agent))
    await sessions.start(port=0)
    try:
        plays = [(row, *play) for row in rows for play in plays_of(SMOKE_BEHAVIOURS[row.label])]
        async with asyncio.TaskGroup() as tasks:
            lessons = [
                tasks.create_task(_trial(settings, sessions, policy, f"warm-start-{index:03d}", *play))
                for index, play in enumerate(plays)
            ]
            for done, lesson in enumerate(asyncio.as_completed(lessons), start=1):
                await lesson
                events.write("lesson", done=done, total=len(lessons))
        return [lesson.result() for lesson in lessons]
    finally:
        await sessions.stop()


def plays_of(behaviour: Behaviours) -> list[tuple[float, list[str], float]]:
    """(share, commands, expected reward) of all that is taught of one task."""
    first, second = behaviour.wrong
    return [
        (RIGHT, [behaviour.right], 1.0),
        (RIGHT_CHECKED, [behaviour.right, behaviour.check], 1.0),
        (WRONG, [first], 0.0),
        (WRONG, [second], 0.0),
        (WRONG_CHECKED, [first, behaviour.check], 0.0),
        (GIVES_UP, [], 0.0),
    ]


async def _trial(
    settings: Settings,
    sessions: SessionServer,
    policy: ScriptedPolicy,
    name: str,
    row: Row,
    share: float,
    commands: list[str],
    expected: float,
) -> Lesson:
    session = sessions.store.open(stream=(settings.seed,))
    policy.play(session.id, TURNS[settings.agent](commands))
    try:
        outcome = await agent.run(
            base_url=session.base_url,
            prompt=row.prompt,
            request_kwargs=request_kwargs(settings),
            metadata={**row.metadata, "trial_name": f"{row.label}__{name}"},
        )
        trajectory = sessions.store.collect(session.id, settings.max_seq_len)
    finally:
        await sessions.store.close(session.id)
    reward = (outcome or {}).get("reward")
    if trajectory is None or reward != expected:
        raise RecipeError(
            f"a scripted trial of {row.label} went wrong",
            expected=f"reward {expected:g} for {commands or 'giving up'}",
            found=f"reward {reward}, {(outcome or {}).get('exit_status')}, {(outcome or {}).get('error')}",
            where=f"trials/{row.label}__{name}",
        )
    return Lesson(row.label, share, trajectory.ids, trajectory.loss_mask)


def camel_turns(commands: Sequence[str]) -> list[list[int]]:
    """The ids of each model turn that runs `commands` with CAMEL's tool, one by one, and ends the trial."""
    calls = [{"name": "shell_exec", "arguments": {"command": command}} for command in commands]
    turns = [
        {"role": "assistant", "tool_calls": [{"id": "call", "function": function}]} for function in calls
    ]
    return [*map(_turn, turns), _turn({"role": "assistant", "content": FINAL_MESSAGE})]


def terminus_2_turns(commands: Sequence[str]) -> list[list[int]]:
    """The same in Terminus-2's JSON: the last command says that the task is done, and a turn more confirms it."""
    keystrokes = [[{"keystrokes": f"{command}\n", "duration": KEY_SECONDS}] for command in commands] or [[]]
    done = [False] * (len(keystrokes) - 1) + [True]
    return [
        _json_turn(keys, complete=end) for keys, end in zip([*keystrokes, []], [*done, True], strict=True)
    ]


TURNS: dict[str, Callable[[Sequence[str]], list[list[int]]]] = {
    "camel": camel_turns,
    "terminus-2": terminus_2_turns,
}


def _json_turn(commands: list[dict[str, Any]], *, complete: bool) -> list[int]:
    thought, plan = ("Run it.", "Run it.") if commands else ("It is done.", "None.")
    answer = {"analysis": thought, "plan": plan, "commands": commands, "task_complete": complete}
    return _turn({"role": "assistant", "reasoning_content": thought, "content": json.dumps(answer)})


def _turn(message: dict[str, Any]) -> list[int]:
    # A prompt ends with <|message_model|>, which opens the turn; the turn is what the message adds after it.
    question = {"role": "user", "content": "?"}
    return rendering.first_prompt([question, message])[len(rendering.first_prompt([question])) : -1]
