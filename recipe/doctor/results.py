"""What a check comes to, and which checks were chosen; the table of either kind is a list of rows with a name."""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from recipe.errors import BadInputError, InterruptedRunError, RecipeError

Verdict = Literal["ok", "FAIL", "warn", "skip"]


@dataclass(frozen=True)
class Result:
    """`errors` are what a launch is refused with; `cells` what each node has, by address, and `bad` the odd ones."""

    check: str
    verdict: Verdict
    found: str
    expected: str = ""
    run: str = ""
    errors: Sequence[RecipeError] = ()
    cells: Mapping[str, str] = field(default_factory=dict)
    bad: Collection[str] = ()


class UnaskedError(Exception):
    """A check has found out that it can't be made; the text says why."""


def guarded(name: str, look: Callable[[], Result], holds: str = "") -> Result:
    """A check that fails itself is a row of its own, and costs no other's; one that can't be made is skipped.

    `holds`: what must hold, where an error does not say what it expected. What an unexpected error says is not
    shown: it may quote a key.
    """
    try:
        return look()
    except InterruptedRunError:
        raise
    except UnaskedError as reason:
        return Result(name, "skip", str(reason))
    except RecipeError as error:
        return failed(name, [error], holds)
    except Exception as error:  # noqa: BLE001 - whatever an odd machine or service makes it raise
        at = traceback.extract_tb(error.__traceback__)[-1]
        found = f"{type(error).__name__} in {at.name}, {at.filename}:{at.lineno}"
        return failed(name, [BadInputError("the check itself failed", found=found)])


def failed(name: str, errors: Sequence[RecipeError], holds: str = "") -> Result:
    """`holds` as in `guarded`."""
    found = "\n".join(f"{one.problem}: {one.facts.get('found', '')}".removesuffix(": ") for one in errors)
    expected = "\n".join(one.facts.get("expected", holds) for one in errors)
    run = "\n".join(one.facts["run"] for one in errors if "run" in one.facts)
    return Result(name, "FAIL", found, expected, run, errors)


def require_known(names: Iterable[str], known: Collection[str]) -> None:
    """Raises BadInputError, with the nearest name, for what is no check."""
    for name in names:
        if name not in known:
            nearest = difflib.get_close_matches(name, known, n=1) or sorted(known)
            raise BadInputError("there is no such check", expected=", ".join(nearest), found=name)


def require(results: Iterable[Result]) -> None:
    """Raises BadInputError with all that failed, by their names."""
    errors = []
    for result in results:
        for error in result.errors if result.verdict == "FAIL" else ():
            error.facts["check"] = result.check
            errors.append(error)
    if errors:
        raise errors[0] if len(errors) == 1 else BadInputError("\n".join(map(str, errors)))
