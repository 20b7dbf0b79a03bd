"""The one exception tree of the package, and the exit code that each branch of it means.

Every error that a user can meet says what was expected, what was found, where, and what to run.
"""

from __future__ import annotations


class RecipeError(Exception):
    """The job or a check failed (exit code 1)."""

    exit_code = 1

    def __init__(
        self,
        problem: str,
        *,
        expected: object = None,
        found: object = None,
        where: object = None,
        run: str | None = None,
    ) -> None:
        self.problem = problem
        facts = {"expected": expected, "found": found, "where": where, "run": run}
        self.facts = {name: str(value) for name, value in facts.items() if value is not None}
        super().__init__(problem)

    def __str__(self) -> str:
        lines = [self.problem, *(f"  {name:<9}{value}" for name, value in self.facts.items())]
        return "\n".join(lines)


class BadInputError(RecipeError):
    """The input is wrong or the start is refused: nothing was started (exit code 2)."""

    exit_code = 2


class InterruptedRunError(RecipeError):
    """The user asked us to stop: everything that we started is stopped (exit code 130)."""

    exit_code = 130
