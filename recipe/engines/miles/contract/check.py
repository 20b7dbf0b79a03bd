"""`recipe contract`: whether the sources of a job take its flags, its variables and our plugins, told by reading."""

from __future__ import annotations

import difflib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from recipe.drift import checkouts
from recipe.drift.lines import Line, drift, skip
from recipe.engines.miles.contract import plugins, variables
from recipe.engines.miles.contract.model_args import MODEL_ARGS, model_flags
from recipe.engines.miles.contract.registered import Registry
from recipe.engines.miles.contract.sources import PACKAGES, Sources, own_flags, registry, sources_of
from recipe.engines.miles.flags import FIXED, Flag
from recipe.errors import BadInputError, RecipeError
from recipe.pins import PROJECT_ROOT, load_pins
from recipe.settings import Checkouts

REFACTOR = "MILES_EXPERIMENTAL_ROLLOUT_REFACTOR"
GENERATE = "--custom-generate-function-path"
WORST_FIRST = ("FAIL", "DRIFT", "skip", "ok")
TOLD = {"ok": "fit", "DRIFT": "drifted", "FAIL": "failed", "skip": "not judged"}
# Another ring's business: `recipe pins-check` compares commits, and a start warns of them.
COMMITS = (": commit", ": clean")


def lines(chosen: Checkouts, flags: Sequence[Flag], environment: Mapping[str, str]) -> list[Line]:
    """Every comparison of a job with its sources, the failing ones first."""
    found = [*contract(sources_of(chosen), flags, environment), *_features(chosen)]
    return sorted(found, key=lambda line: WORST_FIRST.index(line.status))


def require(chosen: Checkouts, flags: Sequence[Flag], environment: Mapping[str, str]) -> None:
    """Raises BadInputError when a comparison fails: the sources would refuse the job, or ignore part of it."""
    bad = [line for line in lines(chosen, flags, environment) if line.bad]
    if bad:
        names = ", ".join(line.name for line in bad[1:])
        raise BadInputError(
            f"the sources don't take this job: {bad[0].name}" + (f"; and: {names}" if names else ""),
            **{key: bad[0].facts.get(key) for key in ("expected", "found", "where")},
            run="recipe contract",
        )


def report(chosen: Checkouts, flags: Sequence[Flag], environment: Mapping[str, str], *, as_json: bool) -> int:
    """Prints every line as a table or as one JSON object. Returns the exit code: 1 when one fails."""
    return show(lines(chosen, flags, environment), as_json=as_json)


def show(told: Sequence[Line], *, as_json: bool) -> int:
    """Prints the lines. Returns the exit code: 1 when one fails."""
    counts = Counter[str](line.status for line in told)
    if as_json:
        rows = [{"verdict": line.status, "what": line.name, **line.facts} for line in told]
        print(json.dumps({"counts": dict(counts), "lines": rows}, indent=2))
    else:
        print("verdict what | expected | found | file:line")
        for line in told:
            print(row(line))
        print("contract: " + ", ".join(f"{counts[status]} {word}" for status, word in TOLD.items()))
    return int(any(line.bad for line in told))


def row(line: Line) -> str:
    """A line of the table: verdict, what, expected, found, file:line."""
    if line.status != "ok" or not line.facts:
        return str(line)
    return f"{line.status:<7}" + " | ".join([line.name, *line.facts.values()])


def contract(sources: Sources, flags: Sequence[Flag], environment: Mapping[str, str]) -> Iterator[Line]:
    """The comparisons with the sources at hand; nothing of a source that is not there is judged."""
    yield from _told(flag_lines(sources, flags, environment))
    yield from _told(_plugins(sources, flags))
    missing = [name for name in PACKAGES if name not in sources.by_name]
    yield from _told(variables.lines(environment, sources.searched, missing))


def _told(comparisons: Iterator[Line]) -> Iterator[Line]:
    """The lines, and one more for a source that can't be read to the end."""
    try:
        yield from comparisons
    except RecipeError as error:
        yield Line("DRIFT", error.problem, {**error.facts, "run": "make pins-check"})


def flag_lines(sources: Sources, flags: Sequence[Flag], environment: Mapping[str, str]) -> Iterator[Line]:
    """One line for each of our flags and the model's, and one for each parser that is not where it was."""
    known = Registry()
    yield from registry(sources, known)
    generate = next((flag.values[0] for flag in flags if flag.name == GENERATE and flag.values), "")
    added = own_flags(sources, generate)
    if environment.get(REFACTOR) == "1":
        known.flags |= added
        added = {}
    miles = sources.by_name.get("miles")
    for flag in chain(flags, model_flags(miles.folder) if miles else ()):
        yield _flag(flag, known, gated=flag.name in added, missing=sources.lacking(flag.name))


def _flag(flag: Flag, known: Registry, *, gated: bool, missing: Sequence[str]) -> Line:
    label = f"flag {' '.join(flag.words)}"
    registered = known.flags.get(flag.name)
    if registered is None and missing and not gated:
        return skip(label, f"there is no {' and no '.join(missing)} that may register it")
    if registered is None:
        near = difflib.get_close_matches(flag.name, known.flags, n=1)
        nothing = f"nothing; the nearest is {near[0]}" if near else "nothing"
        hint = f"only with {REFACTOR}=1" if gated else nothing
        return _drift(flag, expected="a registered flag, unabbreviated", found=hint, where=flag.source)
    expected = registered.takes + (" (upstream's own type is not judged)" if registered.unread else "")
    refused = registered.misfit(flag.values)
    if refused:
        found = refused.split(" (choose from")[0]
        return _drift(
            flag, expected=expected, found=found, where=f"{registered.where} (given by {flag.source})"
        )
    return Line("ok", label, {"expected": expected, "found": "registered", "where": registered.where})


def _drift(flag: Flag, *, expected: str, found: str, where: str) -> Line:
    mend = "make pins-check" if flag.source == FIXED else f"make pins-check, or correct {flag.source}"
    return drift(f"flag {' '.join(flag.words)}", expected=expected, found=found, where=where, run=mend)


def _plugins(sources: Sources, flags: Sequence[Flag]) -> Iterator[Line]:
    miles = sources.by_name.get("miles")
    if miles is None:
        yield skip("the model's flags and the plugins", f"{MODEL_ARGS} and the calls are in Miles")
        return
    given = [(flag.name, flag.values[0]) for flag in flags if flag.name.endswith("-path") and flag.values]
    yield from plugins.lines(given, sources.program, miles)


def _features(chosen: Checkouts) -> Iterator[Line]:
    for line in checkouts.check(PROJECT_ROOT, load_pins(), chosen):
        if not line.name.endswith(COMMITS):
            yield line
