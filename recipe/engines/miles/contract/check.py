"""`recipe contract`: whether the sources of a job take its flags, its variables and our plugins, told by reading."""

from __future__ import annotations

import difflib
import json
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

from recipe.drift import checkouts
from recipe.drift.lines import Line, drift, skip
from recipe.engines.miles.contract import plugins, variables
from recipe.engines.miles.contract.registered import Registry
from recipe.engines.miles.contract.sources import Sources, sources_of
from recipe.engines.miles.flags import FIXED, Flag
from recipe.errors import BadInputError, RecipeError
from recipe.pins import PROJECT_ROOT, load_pins
from recipe.settings import Checkouts

REFACTOR = "MILES_EXPERIMENTAL_ROLLOUT_REFACTOR"
GENERATE = "--custom-generate-function-path"
WORST_FIRST = {"FAIL": "failed", "DRIFT": "drifted", "skip": "not judged", "ok": "fit"}
# Another ring's business: `recipe pins-check` compares commits, and a start warns of them.
COMMITS = (": commit", ": clean")
# The model's flags, in a shell file: an array, and NAME="${OTHER:-default}", the default being what the job gets.
MODEL_ARGS = Path("scripts/models/inkling-small.sh")
ARRAY = re.compile(r"^MODEL_ARGS=\(\n(.*?)^\)", re.MULTILINE | re.DOTALL)
DEFAULTED = re.compile(r'^(\w+)="?\$\{\w+:-([^}]*)\}"?$', re.MULTILINE)


def lines(chosen: Checkouts, flags: Sequence[Flag], environment: Mapping[str, str]) -> list[Line]:
    """Every comparison of a job with its sources, the failing ones first."""
    features = checkouts.check(PROJECT_ROOT, load_pins(), chosen)
    found = chain(contract(sources_of(chosen), flags, environment), features)
    told = [line for line in found if not line.name.endswith(COMMITS)]
    return sorted(told, key=lambda line: [*WORST_FIRST].index(line.status))


def require(chosen: Checkouts, flags: Sequence[Flag], environment: Mapping[str, str]) -> None:
    """Raises BadInputError when a comparison fails: the sources would refuse the job, or ignore part of it."""
    bad = [line for line in lines(chosen, flags, environment) if line.bad]
    if bad:
        names = "; ".join(line.name for line in bad)
        facts = {key: bad[0].facts.get(key) for key in ("expected", "found", "where")}
        raise BadInputError(f"the sources don't take this job: {names}", **facts, run="recipe contract")


def report(chosen: Checkouts, flags: Sequence[Flag], environment: Mapping[str, str], *, as_json: bool) -> int:
    """Prints every line as a table or as one JSON object. Returns the exit code: 1 when one fails.

    Raises BadInputError without Miles: then nothing of importance could be judged.
    """
    if "miles" not in sources_of(chosen).by_name:
        raise BadInputError(
            "there is no Miles to read", expected="a checkout", found="no folder", where=chosen.miles_dir
        )
    told = lines(chosen, flags, environment)
    counts = Counter[str](line.status for line in told)
    if as_json:
        rows = [{"verdict": line.status, "what": line.name, **line.facts} for line in told]
        print(json.dumps({"counts": dict(counts), "lines": rows}, indent=2))
    else:
        print("verdict what | expected | found | file:line")
        for line in told:
            row = " | ".join([f"{line.status:<7}{line.name}", *line.facts.values()])
            print(row if line.status == "ok" else line)
        print("contract: " + ", ".join(f"{counts[status]} {word}" for status, word in WORST_FIRST.items()))
    return int(any(line.bad for line in told))


def contract(sources: Sources, flags: Sequence[Flag], environment: Mapping[str, str]) -> Iterator[Line]:
    """The comparisons with the sources at hand, and a line for each part of them that can't be read to the end."""
    elsewhere = [skip("the model's flags and the plugins", f"{MODEL_ARGS} and the calls are in Miles")]
    called = plugins.lines({flag.name: flag.values[0] for flag in flags if flag.values}, sources)
    in_miles = called if sources.of("miles") else elsewhere
    for part in (flag_lines(sources, flags, environment), in_miles, variables.lines(environment, sources)):
        try:
            yield from part
        except RecipeError as error:
            yield Line("DRIFT", error.problem, {**error.facts, "run": "make pins-check"})


def flag_lines(sources: Sources, flags: Sequence[Flag], environment: Mapping[str, str]) -> Iterator[Line]:
    """One line for each of our flags and the model's. Raises RecipeError for a source that can't be read."""
    known, asked = Registry(sources), Registry(sources)
    known.read_all()
    generate = next((flag.values[0] for flag in flags if flag.name == GENERATE and flag.values), "")
    file = sources.file(generate.rpartition(".")[0])
    if file:  # Miles asks the generate function for flags of its own, with the variable alone
        (known if environment.get(REFACTOR) == "1" else asked).read(file)
    miles = sources.of("miles")
    for flag in chain(flags, model_flags(miles.folder) if miles else ()):
        missing = [*sources.lacking(flag.name), *known.lost]
        yield _flag(flag, known, f"only with {REFACTOR}=1" if flag.name in asked.flags else "", missing)


def _flag(flag: Flag, known: Registry, unasked: str, missing: Sequence[str]) -> Line:
    label, registered = f"flag {' '.join(flag.words)}", known.flags.get(flag.name)
    expected, where = "a registered flag, unabbreviated", flag.source
    if registered:
        expected, where = registered.takes, registered.where
        refused = registered.misfit(flag.values)
        if not refused:
            return Line("ok", label, {"expected": expected, "found": "registered", "where": where})
        where += f" (given by {flag.source})"
    elif missing and not unasked:
        return skip(label, f"it may be registered where nothing can be read: {', '.join(missing)}")
    else:
        near = "; the nearest is ".join(["nothing", *difflib.get_close_matches(flag.name, known.flags, n=1)])
        refused = unasked or near
    mend = "make pins-check" if flag.source == FIXED else f"make pins-check, or correct {flag.source}"
    return drift(label, expected=expected, found=refused, where=where, run=mend)


def model_flags(miles: Path) -> Iterator[Flag]:
    """The flags of MODEL_ARGS, in order; nothing is run. Raises RecipeError when the file can't be read so."""
    path = miles / MODEL_ARGS
    text = path.read_text() if path.is_file() else ""
    array, known = ARRAY.search(text), dict(DEFAULTED.findall(text))
    if array is None:
        raise RecipeError("the model's flags can't be read", expected="MODEL_ARGS=(...)", where=path)
    for number, line in enumerate(array[1].splitlines(), text.count("\n", 0, array.start(1)) + 1):
        words = re.sub(r"\$\{?(\w+)\}?", lambda one: known.get(one[1], one[0]), line)
        for part in f" {shlex.join(shlex.split(words, comments=True))}".split(" --")[1:]:
            name, *values = shlex.split(part)
            yield Flag(f"--{name}", tuple(values), f"{path}:{number}")
