"""Tasks made on the spot, a scratch folder of the test's own, and proof that nothing is left behind."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from recipe.harbor.trials import TrialRequest

REWARD_1 = "echo 1 > /logs/verifier/reward.txt"
TASK = """
[agent]
timeout_sec = {agent_seconds}
[verifier]
timeout_sec = {verifier_seconds}
[environment]
network_mode = "{network}"
memory_mb = 512
"""


@pytest.fixture
def scratch_root() -> Iterator[Path]:
    """A folder that the sandboxes' user can reach (pytest's own are closed to it); must be empty at the end."""
    folder = Path(tempfile.mkdtemp(prefix="inkling-grpo-test-"))
    folder.chmod(0o755)
    root = folder / "scratch"
    yield root
    left = sorted(path.name for path in root.glob("*"))
    shutil.rmtree(folder)
    assert not left, "a sandbox left its folder"


@pytest.fixture
def make_task(tmp_path: Path) -> Callable[..., Path]:
    def make(
        name: str = "task",
        *,
        test: str = REWARD_1,
        solution: str = "true",
        dockerfile: str = "FROM scratch\nWORKDIR /app\n",
        agent_seconds: float = 60,
        verifier_seconds: float = 60,
        network: str = "no-network",
        more: str = "",
        files: dict[str, str] | None = None,
    ) -> Path:
        task = tmp_path / "tasks" / name
        texts = {
            "task.toml": more
            + TASK.format(agent_seconds=agent_seconds, verifier_seconds=verifier_seconds, network=network),
            "instruction.md": "Do it.\n",
            "environment/Dockerfile": dockerfile,
            "tests/test.sh": f"#!/bin/bash\n{test}\n",
            "solution/solve.sh": f"#!/bin/bash\n{solution}\n",
            **{f"environment/{path}": text for path, text in (files or {}).items()},
        }
        for path, text in texts.items():
            (task / path).parent.mkdir(parents=True, exist_ok=True)
            (task / path).write_text(text)
        return task

    return make


@pytest.fixture
def request_for(tmp_path: Path, scratch_root: Path) -> Callable[..., TrialRequest]:
    """A trial in the local sandbox: of Harbor's own agent by name, or of the scripted one with these options."""

    def make(task: Path, agent: str = "scripted_agent:ScriptedAgent", **options: Any) -> TrialRequest:
        environment = {
            "import_path": "recipe.harbor.local_env:LocalEnvironment",
            "kwargs": {"scratch_root": str(scratch_root)},
        }
        return TrialRequest(task, tmp_path / "trials", agent, environment, agent_options=options)

    return make
