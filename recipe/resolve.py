"""From what was given to the settings of a command.

A value comes from, highest first: NAME=VALUE arguments (of `recipe` or of `make`), the environment, the
command's preset, the `.env` file, the default; CLUSTER_CONFIG says nothing else than these.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

from recipe import given
from recipe.cluster_config import read_cluster_config
from recipe.errors import BadInputError
from recipe.given import Given
from recipe.presets import preset_of
from recipe.settings import NAMES, SECRETS, Checkouts, Settings

# The source of a value that stands in for one that a command does without.
NOT_NEEDED = "none is needed"
# Who logs in to a URL, and how.
PASSWORD = re.compile(r"//[^/\s]*@")
# Of a bad value, as much is shown as fits on a line beside its label.
SHOWN_CHARACTERS = 80


def load(command: str | None = None, arguments: Iterable[str] = ()) -> Settings:
    """Resolves the settings of a command. Raises BadInputError for an unknown name or a bad value."""
    return resolve(_given(command, arguments))


def load_checkouts(arguments: Iterable[str] = ()) -> Checkouts:
    """The checkouts alone: nothing that a run requires has to be set. Raises BadInputError."""
    found = _given(None, arguments)
    return _validated(Checkouts, {name: found[name] for name in Checkouts.model_fields if name in found})


def load_sources(arguments: Iterable[str] = ()) -> Settings:
    """The settings of production for what needs no run: the tasks and the head node need not be given."""
    stand_in = {"tasks_dir": (".", NOT_NEEDED), "head_ip": ("localhost", NOT_NEEDED)}
    return resolve(stand_in | _given(None, arguments) | {"engine": ("miles", "this command")})


def restore(public: dict[str, Any]) -> Settings:
    """The settings of a run from their dump; secrets, which it lacks, from the environment or its `.env` file."""
    file = public["env_file"]
    found = given.env_file(file, NAMES, required=False) | given.environment(NAMES)
    try:
        return Settings.model_validate(public | {name: found[name][0] for name in SECRETS if name in found})
    except ValidationError as error:
        names = ", ".join(sorted({str(problem["loc"][0]).upper() for problem in error.errors()}))
        raise BadInputError(
            "the run's settings are not those of this version",
            found=names,
            run="git checkout the commit that run_manifest.json names",
        ) from None


def _given(command: str | None, words: Iterable[str]) -> Given:
    written = given.arguments(words, NAMES, SECRETS)
    surrounding = given.environment(NAMES)
    explicit = surrounding | written
    file, source = explicit.get("env_file", (".env", "default"))
    in_file = given.env_file(file, NAMES, required=source != "default")
    agent = (in_file | explicit).get("agent", ("camel", "default"))[0]
    chosen = preset_of(command, explicit, agent) if command else {}
    found = in_file | chosen | explicit
    cluster = read_cluster_config(found["cluster_config"][0]) if "cluster_config" in found else {}
    for name in cluster.keys() & found.keys():
        if cluster[name][0] != found[name][0]:
            raise BadInputError(
                f"CLUSTER_CONFIG and {name.upper()} don't agree",
                expected=f"{name.upper()}={cluster[name][0]}, or none of the two",
                found=f"{found[name][0]} ({found[name][1]})",
                where=cluster[name][1],
            )
    return cluster | found


def resolve(written: Given) -> Settings:
    """Validates values as written. Raises BadInputError: the setting, what it takes, where it was set."""
    return _validated(Settings, written)


def _validated[S: Checkouts](kind: type[S], written: Given) -> S:
    try:
        settings = kind.model_validate({name: value for name, (value, _) in written.items()})
    except ValidationError as error:
        raise _bad_value(error, written) from None
    settings._sources = {name: source for name, (_, source) in written.items()}
    return settings


def _bad_value(error: ValidationError, written: Given) -> BadInputError:
    # A derived default is not computed when what it derives from is bad: that is no error of its own.
    problems = [problem for problem in error.errors() if problem["type"] != "default_factory_not_called"]
    problem = problems[0]
    name = str(problem["loc"][0])
    if problem["type"] == "missing":
        return BadInputError(f"{name.upper()} is not set", expected=Settings.model_fields[name].description)
    value, source = written[name]
    field = Settings.model_fields[name]
    extra: dict[str, Any] = field.json_schema_extra  # type: ignore[assignment]
    form = extra["form"] if problem["type"] == "string_pattern_mismatch" else ""
    expected = form or problem["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    value = PASSWORD.sub("//(secret)@", value)
    shown = repr(value) if len(value) <= SHOWN_CHARACTERS else f"{value[:SHOWN_CHARACTERS]!r} and more"
    others = ", ".join(sorted({str(other["loc"][0]).upper() for other in problems[1:]}))
    return BadInputError(
        f"{name.upper()} has a bad value" + (f" (and so have: {others})" if others else ""),
        expected=expected + (f" [{extra['unit']}]" if extra["unit"] else ""),
        found="(secret)" if name in SECRETS else shown,
        where=source,
    )
