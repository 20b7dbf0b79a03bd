"""The one place where an engine is found: by its name in the settings."""

from __future__ import annotations

import importlib

from recipe.job import Job
from recipe.run.folder import RunFolder
from recipe.settings import Settings


def engine_job(settings: Settings, folder: RunFolder, agent_server_url: str) -> Job:
    """The job that the engine makes of the settings."""
    module = importlib.import_module(f"recipe.engines.{settings.engine}.job")
    job = module.job(settings, folder.path, agent_server_url)
    assert isinstance(job, Job)
    return job
