"""The part of docs/symptoms.md that is written from the checks' own tables; the rest is written by hand."""

from __future__ import annotations

from recipe.doctor.checks import CHECKS
from recipe.doctor.node_checks import NODE_CHECKS
from recipe.doctor.report import RAY, RAY_HOLDS
from recipe.errors import BadInputError
from recipe.resolve import resolve

START = "<!-- written from recipe/doctor by recipe pins-check --write -->"
MESSAGE = "what its message says"
HEAD = "| a run that starts all the same shows | what must hold | what to run | check |\n|---|---|---|---|"
LOCAL = "### Only before a run of the local engine\n\n`make smoke` and `make learn` make these; the doctor does not."


def markdown(page: str) -> str:
    """docs/symptoms.md: `page` up to START, then a row for each check. Raises BadInputError without that mark."""
    before, start, _ = page.partition(START)
    if not start:
        raise BadInputError("the page has lost its mark", expected=START, where="docs/symptoms.md")
    settings = resolve({"engine": ("miles", "default"), "tasks_dir": ("t", "default")})
    local: list[tuple[str, str, str, str]] = []
    others: list[tuple[str, str, str, str]] = []
    for one in CHECKS:
        (local if one.engine == "local" else others).append((one.symptom, one.expected, MESSAGE, one.name))
    others.append(("the job can't be submitted, or nothing runs it", RAY_HOLDS, MESSAGE, RAY))
    for check in NODE_CHECKS:
        expected = check.expected if isinstance(check.expected, str) else check.expected(settings)
        others.append((check.symptom, expected, check.run, check.name))
    tables = ["\n".join([HEAD, *(f"| {' | '.join(row)} |" for row in rows)]) for rows in (others, local)]
    return f"{before}{START}\n\n{tables[0]}\n\n{LOCAL}\n\n{tables[1]}\n"
