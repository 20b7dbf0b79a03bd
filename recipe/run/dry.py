"""A dry run: the resolved settings with their sources, the job that would be submitted, what would refuse a start."""

from __future__ import annotations

import json

from rich.console import Console

from recipe import rules
from recipe.doctor import checks
from recipe.doctor.report import NAMES
from recipe.doctor.results import require_known
from recipe.job import Job
from recipe.run.engine import engine_job
from recipe.run.folder import RunFolder
from recipe.settings import Settings
from recipe.settings_tables import resolved


def show_plan(settings: Settings, console: Console, *, as_json: bool = False) -> None:
    """Prints the plan, and what on this machine would refuse a start. Raises BadInputError for bad input."""
    rules.check(settings)
    require_known(settings.skipped_checks, NAMES)
    checks.check_input(settings)
    port = settings.agent_server_port or "<a free port>"
    url = settings.agent_server_url or f"http://{settings.agent_server_host}:{port}"
    job = engine_job(settings, RunFolder(settings.run_dir), url)
    refusals = [str(finding) for finding in checks.here(settings)]
    if as_json:
        console.print_json(json.dumps(_plan(settings, job, refusals)))
        return
    lines = [resolved(settings), "", *_job_lines(job)]
    if refusals:
        lines += ["", "on this machine a start would be refused:", *(f"- {one}" for one in refusals)]
    console.print("\n".join(lines), soft_wrap=True, highlight=False, markup=False)


def _job_lines(job: Job) -> list[str]:
    lines = ["entry point of the job on Ray:"]
    lines += [f"  {words:<76}  {source}" for words, source in job.arguments] or [f"  {job.entrypoint}"]
    lines += ["", "its environment:", *(f"  {name}={value}" for name, value in sorted(job.env.items()))]
    return lines


def _plan(settings: Settings, job: Job, refusals: list[str]) -> dict[str, object]:
    return {
        "settings": settings.with_sources(),
        "job": {
            "entrypoint": job.entrypoint,
            "arguments": [{"words": words, "source": source} for words, source in job.arguments],
            "environment": job.env,
        },
        "refusals": refusals,
    }
