"""The part of docs/symptoms.md that is written from the checks' own tables; the rest is written by hand."""

from __future__ import annotations

from recipe.doctor.checks import CHECKS
from recipe.doctor.node_checks import NODE_CHECKS
from recipe.errors import BadInputError
from recipe.resolve import resolve

START = "<!-- written from recipe/doctor by recipe pins-check --write -->"


def markdown(page: str) -> str:
    """docs/symptoms.md: `page` up to START, then a row for each check. Raises BadInputError without that mark."""
    before, start, _ = page.partition(START)
    if not start:
        raise BadInputError("the page has lost its mark", expected=START, where="docs/symptoms.md")
    settings = resolve({"engine": ("miles", "default"), "tasks_dir": ("t", "default")})
    rows = [(one.symptom, one.expected.rstrip("."), "what its message says", one.name) for one in CHECKS]
    for check in NODE_CHECKS:
        expected = check.expected if isinstance(check.expected, str) else check.expected(settings)
        rows.append((check.symptom, expected, check.run, check.name))
    lines = [
        "| a run that starts all the same shows | what must hold | what to run | check |",
        "|---|---|---|---|",
    ]
    return "\n".join([before + START, "", *lines, *(f"| {' | '.join(row)} |" for row in rows), ""])
