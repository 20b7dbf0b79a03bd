"""What a check comes to, and which checks were chosen; the table of either kind is a list of rows with a name."""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from recipe.errors import BadInputError, InterruptedRunError, RecipeError
from recipe.settings import Settings

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


@dataclass(frozen=True)
class Check:
    """One thing that must hold; `findings` says in the first line of its docstring what, and yields what is wrong.

    `place`: `input` is about what was given, `account` asks a service, `here` is about the launcher's machine.
    """

    name: str
    findings: Callable[[Settings], Iterator[BadInputError]]
    symptom: str
    place: Literal["input", "account", "here"] = "here"
    engine: str = ""  # the only one that it is about
    # Why it can't be made, or nothing, as far as that is known before anybody is asked.
    unasked: Callable[[Settings], str] = lambda _settings: ""

    @property
    def expected(self) -> str:
        return (self.findings.__doc__ or "").splitlines()[0]

    def look(self, settings: Settings) -> Result:
        return guarded(self.name, lambda: self._look(settings))

    def _look(self, settings: Settings) -> Result:
        try:
            errors = list(self.findings(settings))
        except UnaskedError as reason:
            return skipped(self.name, str(reason))
        if not errors:
            return Result(self.name, "ok", "so it is", self.expected)
        return failed(self.name, errors, self.expected)


def failed(name: str, errors: Sequence[RecipeError], holds: str = "") -> Result:
    """`holds`: what must hold, where an error does not say what it expected."""
    found = "\n".join(f"{one.problem}: {one.facts.get('found', '')}".removesuffix(": ") for one in errors)
    expected = "\n".join(one.facts.get("expected", holds) for one in errors)
    run = "\n".join(one.facts["run"] for one in errors if "run" in one.facts)
    return Result(name, "FAIL", found, expected, run, errors)


def guarded(name: str, look: Callable[[], Result]) -> Result:
    """A check that fails itself is a row of its own, and costs no other's.

    What an unexpected error says is not shown: it may quote a key.
    """
    try:
        return look()
    except InterruptedRunError:
        raise
    except RecipeError as error:
        return failed(name, [error])
    except Exception as error:  # noqa: BLE001 - whatever an odd machine or service makes it raise
        at = traceback.extract_tb(error.__traceback__)[-1]
        found = f"{type(error).__name__} in {at.name}, {at.filename}:{at.lineno}"
        return failed(name, [BadInputError("the check itself failed", found=found)])


def require_known(names: Iterable[str], known: Collection[str]) -> None:
    """Raises BadInputError, with the nearest name, for what is no check."""
    for name in names:
        if name not in known:
            nearest = difflib.get_close_matches(name, known, n=1) or sorted(known)
            raise BadInputError("there is no such check", expected=", ".join(nearest), found=name)


def skipped(name: str, reason: str) -> Result:
    return Result(name, "skip", reason)


def require(results: Iterable[Result]) -> list[str]:
    """The names of the checks that were skipped. Raises BadInputError with all that failed, by their names."""
    results, errors = list(results), []
    for result in results:
        for error in result.errors if result.verdict == "FAIL" else ():
            error.facts["check"] = result.check
            errors.append(error)
    if errors:
        raise errors[0] if len(errors) == 1 else BadInputError("\n".join(map(str, errors)))
    return [result.check for result in results if result.verdict == "skip"]
