"""Prepares a run of the local engine: a private Ray, our agent server, the check of sandbox and tasks."""

from __future__ import annotations

import sys

from recipe.errors import BadInputError
from recipe.given import child_environment
from recipe.harbor import environment_config
from recipe.harbor.server import SET
from recipe.job import RayAddress
from recipe.process import ProcessGroup
from recipe.run.login import write_login
from recipe.run.parts import Prepared, Run
from recipe.run.ray_cluster import RayCluster

# A self-check runs two trials of about a second for each task.
SELF_CHECK_SECONDS = 180.0


def prepare(run: Run) -> Prepared:
    """Starts what the job needs. Raises BadInputError for a sandbox or a task that is not sound."""
    ray = run.begin(lambda: RayCluster.start(run.folder.ray_log))
    # It plays the tasks in local sandboxes: others have `recipe dataset check --oracle`.
    checks = run.settings.sandbox_backend == "local"
    self_check = run.begin(lambda: _start_self_check(run)) if checks else None
    config = environment_config.write(run.settings, run.folder.path / "launcher")
    server = run.serve(child_environment(), environment_config=config)
    if self_check:
        if self_check.wait_end(seconds=SELF_CHECK_SECONDS, watch=run.interrupts.check):
            raise BadInputError(
                "the sandbox or a task is not sound, so no job was started", found=self_check.log_tail()
            )
        run.display.note("sandbox and tasks are sound")
    ray.wait_ready(run.interrupts.check)
    write_login(run)
    run.display.note(f"Ray at {ray.jobs_url}, agent server at {server.url}")
    return Prepared(RayAddress(ray.jobs_url, ray.headers), server, (ray.process, server.process))


def _start_self_check(run: Run) -> ProcessGroup:
    argv = [sys.executable, "-m", "recipe.harbor.selfcheck", "--agent", run.settings.agent]
    argv += ["--tasks-dir", str(run.settings.tasks_dir)]
    log = run.folder.path / "logs" / "self_check.log"
    return ProcessGroup.start("the check of sandbox and tasks", argv, log=log, env=child_environment(**SET))
