"""The one place where an engine is found: by its name in the settings."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence

from recipe.job import Job
from recipe.run.folder import RunFolder
from recipe.run.parts import Prepared, Run
from recipe.settings import Settings
from recipe.tasks.prompts import Row


def check_engine(settings: Settings, rows: Callable[[], Sequence[Row]]) -> None:
    """What the engine itself refuses before a start. Raises BadInputError.

    `rows` reads the prompt rows: an engine that does not look at them spares the time.
    """
    importlib.import_module(f"recipe.engines.{settings.engine}.job").check(settings, rows)


def engine_job(settings: Settings, folder: RunFolder, agent_server_url: str) -> Job:
    """The job that the engine makes of the settings."""
    module = importlib.import_module(f"recipe.engines.{settings.engine}.job")
    job = module.job(settings, folder.path, agent_server_url)
    assert isinstance(job, Job)
    return job


def prepare(run: Run) -> Prepared:
    """Starts or finds what the engine's job needs."""
    where = {"local": "one_machine", "miles": "cluster"}[run.settings.engine]
    prepared = importlib.import_module(f"recipe.run.{where}").prepare(run)
    assert isinstance(prepared, Prepared)
    return prepared
