"""Checks tasks by Harbor's own models, and by trials: the reference solution scores 1, doing nothing scores 0."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import signal
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from recipe.errors import BadInputError, InterruptedRunError, RecipeError
from recipe.files import write_whole
from recipe.run.interrupts import SIGNALS
from recipe.tasks.folders import content_hash, entries, refuse, require_usable

AT_ONCE = 20  # tasks, whose results are kept when a later one is interrupted


def check(tasks_dir: Path, names: Sequence[str], backend: str | None) -> str:
    """Says by what the tasks were checked. Raises BadInputError listing all that is wrong with them."""
    require_usable(tasks_dir, names, backend)
    version = _harbor_version()
    if version is None:
        return "by what this package reads of them: Harbor is not installed here"
    found = {name: _harbor_problem(tasks_dir / name, backend) for name in names}
    refuse(tasks_dir, [f"{name}: {problem}" for name, problem in found.items() if problem])
    return f"by the models of Harbor {version}"


def run_oracle(tasks_dir: Path, names: Sequence[str], cache_dir: Path, tell: Callable[[str], None]) -> int:
    """How many tasks fail their two trials in the local sandbox; one that passed is not run again until it changes.

    Raises BadInputError where no sandbox can run, InterruptedRunError when a signal came; no sandbox is left.
    """
    version = _harbor_version()
    if version is None:
        raise BadInputError("trials need Harbor", expected="the extra local", found="not installed")
    from recipe.harbor.selfcheck import Interruption, check_tasks

    cache, interruption, failed = cache_dir / "oracle", Interruption(), 0
    cache.mkdir(parents=True, exist_ok=True)
    places = {name: cache / f"local-{version}-{content_hash(tasks_dir / name)}.json" for name in names}
    due = [name for name, place in places.items() if not place.is_file()]
    tell(f"{len(names) - len(due)} of {len(names)} tasks passed before")
    previous = {number: signal.signal(number, interruption) for number in SIGNALS}
    try:
        for start in range(0, len(due), AT_ONCE):
            for one in check_tasks(tasks_dir, due[start : start + AT_ONCE], interruption):
                tell(str(one))
                failed += not one.passed
                if one.passed:
                    write_whole(places[one.name], json.dumps(asdict(one)))
    except asyncio.CancelledError:
        raise InterruptedRunError("interrupted: no sandbox is left") from None
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    return failed


def _harbor_version() -> str | None:
    try:
        return importlib.metadata.version("harbor")
    except importlib.metadata.PackageNotFoundError:
        return None


def _harbor_problem(task: Path, backend: str | None) -> str | None:
    from harbor.models.task.config import TaskConfig
    from harbor.models.task.task import Task

    from recipe.harbor.dockerfile import read_dockerfile

    dockerfile = task / "environment" / "Dockerfile"
    try:
        config = TaskConfig.model_validate_toml((task / "task.toml").read_text(encoding="utf-8"))
        steps = config.steps or config.verifier.environment or config.verifier.environment_mode
        links = any(entry.is_symlink() or entry.name == ".harborignore" for entry in entries(task))
        # Without these, Task() spends 2.5 ms to find that tests/test.sh is there.
        if steps or links or not (task / "tests" / "test.sh").is_file():
            Task(task)
        if not config.environment.docker_image and not dockerfile.parent.is_dir():
            return "it lacks environment/"
        if backend == "local" and dockerfile.exists():
            read_dockerfile(dockerfile)
    except (OSError, ValueError, RuntimeError, RecipeError) as error:
        return " ".join(str(error).split())
    return None
