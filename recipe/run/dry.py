"""A dry run: the resolved settings with their sources, and the job that would be submitted."""

from __future__ import annotations

from rich.console import Console

from recipe import rules
from recipe.doctor import checks
from recipe.run.engine import check_engine, engine_job
from recipe.run.folder import RunFolder
from recipe.settings import Settings
from recipe.settings_tables import resolved


def show_plan(settings: Settings, console: Console) -> None:
    """Prints the plan. Raises BadInputError where the run itself would be refused before anything starts."""
    rules.check(settings)
    checks.check(settings)
    check_engine(settings, checks.prompt_rows(settings))
    port = settings.agent_server_port or "<a free port>"
    job = engine_job(
        settings,
        RunFolder(settings.runs_root / settings.run_name),
        f"http://{settings.agent_server_host}:{port}",
    )
    console.print(resolved(settings), soft_wrap=True, highlight=False, markup=False)
    console.print(f"\nentry point of the job on Ray:\n  {job.entrypoint}\n\nits environment:", soft_wrap=True)
    for name, value in sorted(job.env.items()):
        console.print(f"  {name}={value}", soft_wrap=True, highlight=False, markup=False)
