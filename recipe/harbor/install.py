"""Installs the recipe's pinned Harbor: a checkout and an environment for each commit, each complete or not there.

HARBOR_HOME/<commit>/ has checkout/, environment/ and, once both are complete, installed.json. HARBOR_DIR, where it
is set, is used in place of checkout/ and not written to: its environment, which imports Harbor from there, lies in
HARBOR_HOME under a name of its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import re
import shutil
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from recipe.drift import checkouts
from recipe.errors import BadInputError, RecipeError
from recipe.files import kind_of, read_text, write_whole
from recipe.given import child_environment
from recipe.pins import PROJECT_ROOT, Pins, Recipe
from recipe.process import ProcessGroup
from recipe.settings import Checkouts, Settings

# Backends and agents that Harbor knows by an extra of its pyproject.toml; all are installed, so that another
# backend needs no other environment.
EXTRAS = ("daytona", "modal", "gke", "camel")
# One commit and some 140 packages (600 MB) take 20 s from a near mirror; these end a hang on a slow network.
FETCH_SECONDS, SYNC_SECONDS = 900.0, 1800.0
LOCK_SECONDS = FETCH_SECONDS + SYNC_SECONDS  # what another install may take
TELL_EVERY_SECONDS = 15.0
CREDENTIALS = re.compile(r"(?<=://)[^/\s]+@")

Say = Callable[[str], None]


@dataclass(frozen=True)
class HarborInstall:
    """Where the pinned Harbor lies, and the Python that imports it from there."""

    checkout: Path
    python: Path


def install(settings: Settings, pins: Pins, say: Say) -> HarborInstall:
    """What is complete is kept, what is not is made anew; `say` takes lines of progress and the warnings.

    Raises BadInputError for a checkout at another commit, with local changes, without what is relied on or with a
    stale uv.lock, and where HARBOR_HOME can't be written; RecipeError when git or uv fail, or another install does not
    end.
    """

    def tell(line: str) -> None:
        say(_without_credentials(line))

    pinned = pins.recipes[settings.recipe].sources["harbor"]
    commit = settings.harbor_commit or pinned.rev
    if commit != pinned.rev:
        pins = _at_another_commit(settings, pins, tell)
    home = _home(settings, commit)
    try:
        with _alone(home, tell):
            checkout = settings.harbor_dir or _fetched(home, pinned.url, commit, tell)
            _check(settings, pins, checkout)
            return HarborInstall(checkout, _environment(settings, home, checkout, commit, tell))
    except RecipeError as error:
        error.facts = {name: _without_credentials(text) for name, text in error.facts.items()}
        raise
    except OSError as error:
        raise kind_of(error)("Harbor could not be installed", found=error, where=home) from error


def installed(settings: Settings, pins: Pins) -> HarborInstall | None:
    """The complete install that is there, unchecked; None without one."""
    commit = settings.harbor_commit or pins.recipes[settings.recipe].sources["harbor"].rev
    home = _home(settings, commit)
    python = home / "environment" / "bin" / "python"
    if not (home / "installed.json").exists() or not python.exists():
        return None
    return HarborInstall(settings.harbor_dir or home / "checkout", python)


def _at_another_commit(settings: Settings, pins: Pins, say: Say) -> Pins:
    """The pins with HARBOR_COMMIT in them, and without CAMEL, which comes with Harbor's uv.lock."""
    sources = dict(pins.recipes[settings.recipe].sources)
    pin = sources["harbor"].rev
    if settings.strict_pins:
        raise BadInputError(
            "HARBOR_COMMIT is not the pinned commit",
            expected=pin,
            found=settings.harbor_commit,
            where=settings.source("harbor_commit"),
            run="the same command without HARBOR_COMMIT, or with STRICT_PINS=0",
        )
    say(
        f"warning: HARBOR_COMMIT {settings.harbor_commit} is not the recipe's pin {pin}, nor need its CAMEL be"
    )
    sources.pop("camel", None)
    sources["harbor"] = sources["harbor"].model_copy(update={"rev": settings.harbor_commit})
    return pins.model_copy(update={"recipes": {**pins.recipes, settings.recipe: Recipe(sources)}})


def _home(settings: Settings, commit: str) -> Path:
    if settings.harbor_dir is None:
        return settings.harbor_home / commit
    place = hashlib.sha256(bytes(settings.harbor_dir)).hexdigest()[:8]
    return settings.harbor_home / f"{commit}-of-{place}"


@contextmanager
def _alone(home: Path, say: Say) -> Iterator[None]:
    """Two installs of one commit work one after the other."""
    home.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + LOCK_SECONDS
    told = False
    with (home / "lock").open("a") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    needed, hint = f"its end within {LOCK_SECONDS:g} s", f"fuser -v {lock.name}"
                    problem = "another install of Harbor did not end"
                    raise RecipeError(problem, expected=needed, where=lock.name, run=hint) from None
            if not told:
                say(f"another install of this Harbor is at work: at most {LOCK_SECONDS / 60:.0f} min to wait")
            told = True
            time.sleep(0.1)
        yield


def _fetched(home: Path, url: str, commit: str, say: Say) -> Path:
    checkout, partial = home / "checkout", home / "checkout.partial"
    if checkout.is_dir():
        say(f"the checkout of Harbor {commit} is there")
        return checkout
    say(f"fetching Harbor {commit} from {url}")
    # A git that was killed leaves its lock files.
    shutil.rmtree(partial, ignore_errors=True)
    fetch = [str(PROJECT_ROOT / "container" / "checkout.sh"), url, commit, str(partial)]
    script = 'git init --quiet "$3" && exec sh "$0" "$@"'
    env = child_environment(GIT_TERMINAL_PROMPT="0", LC_ALL="C")
    failure = _run("git", ["sh", "-c", script, *fetch], home, env, FETCH_SECONDS, say)
    if failure is not None:
        raise RecipeError(
            "Harbor's commit could not be fetched",
            expected=f"{commit} of {url}",
            found=failure,
            where=home,
            run=f"git ls-remote {url}; once it answers, make harbor",
        )
    partial.rename(checkout)
    return checkout


def _check(settings: Settings, pins: Pins, checkout: Path) -> None:
    """Raises BadInputError for the first thing in which the checkout is not what is pinned."""
    # The comparison takes a recipe's sources together: the others are looked for where nothing is.
    nothing = checkout / "none"
    chosen = Checkouts(
        agent=settings.agent,
        harbor_dir=checkout,
        miles_dir=nothing,
        sglang_dir=nothing,
        megatron_path=nothing,
    )
    chosen._sources = {"harbor_dir": settings.source("harbor_dir")}
    for line in checkouts.check(PROJECT_ROOT, pins, chosen):
        if line.bad:
            raise BadInputError(f"this Harbor is not the one that is pinned ({line.name})", **line.facts)


def _environment(settings: Settings, home: Path, checkout: Path, commit: str, say: Say) -> Path:
    """The environment's Python; what uv installs is all of uv.lock that the extras name."""
    environment, mark = home / "environment", home / "installed.json"
    python = environment / "bin" / "python"
    extras = _extras(settings, checkout)
    lock = hashlib.sha256(read_text(checkout / "uv.lock").encode()).hexdigest()
    facts = {"commit": commit, "uv_lock_sha256": lock}
    before, had = _read_mark(mark)
    if before == facts and python.exists():
        if extras <= had:
            say(f"the environment of Harbor {commit} is there")
            return python
    else:
        # A package counts as installed from the moment that its first files are there: uv would not mend it.
        shutil.rmtree(environment, ignore_errors=True)
        had = set()
    mark.unlink(missing_ok=True)
    extras |= had
    say(f"installing Harbor {commit} with {', '.join(sorted(extras))} into {environment}")
    _sync(home, checkout, extras, say)
    write_whole(mark, json.dumps({**facts, "extras": sorted(extras)}, indent=2) + "\n")
    return python


def _read_mark(mark: Path) -> tuple[dict[str, str], set[str]]:
    """What was installed, and with which extras; nothing without a mark."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        facts = json.loads(mark.read_text())
        return facts, set(facts.pop("extras"))
    return {}, set()


def _extras(settings: Settings, checkout: Path) -> set[str]:
    """Those of EXTRAS and of the backend that this Harbor has. Raises BadInputError when the run needs another."""
    project = checkout / "pyproject.toml"
    offered = tomllib.loads(read_text(project)).get("project", {}).get("optional-dependencies", {})
    needed = [name for name in (settings.sandbox_backend, settings.agent) if name in EXTRAS]
    for name in needed:
        if name not in offered:
            raise BadInputError(
                f"this Harbor does not know {name}",
                expected=f"an extra {name}",
                found=", ".join(offered) or "no extras",
                where=project,
                run="the same command without HARBOR_COMMIT, or with another SANDBOX_BACKEND",
            )
    return {*EXTRAS, settings.sandbox_backend} & set(offered)


def _sync(home: Path, checkout: Path, extras: set[str], say: Say) -> None:
    bootstrap = _bootstrap()
    try:
        uv = bootstrap.find_uv()
    except bootstrap.BootstrapError as error:
        raise RecipeError(_without_credentials(str(error))) from None
    argv = [uv, "sync", "--directory", str(checkout), "--locked", "--no-dev", "--compile-bytecode"]
    argv += ["--python", sys.executable, *(f"--extra={name}" for name in sorted(extras))]
    # Which index, mirror and certificates uv uses; of the rest of the user's environment what every program gets.
    own = {
        name: value for name, value in bootstrap.uv_environment().items() if name.startswith(("UV_", "SSL_"))
    }
    env = child_environment() | own | {"UV_PROJECT_ENVIRONMENT": str(home / "environment")}
    env.pop("VIRTUAL_ENV", None)
    if failure := _run("uv", argv, home, env, SYNC_SECONDS, say):
        # A lock that does not fit its pyproject.toml is the commit's, which HARBOR_COMMIT chose.
        kind = BadInputError if "needs to be updated" in failure else RecipeError
        hint = "make harbor: once the cause is mended (downloads are kept), or without HARBOR_COMMIT"
        raise kind("uv could not install Harbor", found=failure, where=checkout, run=hint)


def _bootstrap() -> ModuleType:
    """tools/bootstrap.py, which finds uv, or installs it, for the project's own environment too."""
    spec = importlib.util.spec_from_file_location("bootstrap", PROJECT_ROOT / "tools" / "bootstrap.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _run(
    name: str, argv: Sequence[str], home: Path, env: Mapping[str, str], seconds: float, say: Say
) -> str | None:
    """None, or the end of the output when the program failed. Raises RecipeError after `seconds`."""
    log = home / f"{name}.log"
    log.unlink(missing_ok=True)
    process = ProcessGroup.start(name, argv, log=log, env=env)
    next_line = time.monotonic() + TELL_EVERY_SECONDS

    def tell() -> None:
        nonlocal next_line
        if time.monotonic() > next_line:
            say(f"  {name} is at work: {process.log_tail(1).strip()}")
            next_line = time.monotonic() + TELL_EVERY_SECONDS

    try:
        code = process.wait_end(seconds=seconds, watch=tell)
    finally:
        process.stop()
        log.write_text(_without_credentials(log.read_text(errors="replace")))
    return _reason(process.log_tail()) if code else None


def _reason(output: str) -> str:
    """What the first error in a program's output says, and what caused it, on one line."""
    said = re.split(r"^(?:error|fatal): ", output, flags=re.MULTILINE)[:2][-1].strip()
    return re.sub(r"\n *cause: ", ": ", said)


def _without_credentials(text: str) -> str:
    """URLs of an index, a proxy or a git host may hold a name and a password."""
    return CREDENTIALS.sub("***@", text)
