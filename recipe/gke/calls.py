"""Calls gcloud and kubectl by argument lists, or prints the same calls for a shell; whatever it starts, it ends."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from recipe.errors import BadInputError, RecipeError
from recipe.programs import ask
from recipe.settings import Settings

LOOK_SECONDS = 120.0
# A cluster takes some ten minutes, the drain of full nodes up to an hour, a build at most two.
CHANGE_SECONDS = 7200.0
# An account can't be granted a role until Google has spread the news of it, which mostly takes less than a minute.
GRANT_PAUSES = (5.0, 10.0, 20.0, 40.0, 60.0)
TAIL_LINES, TAIL_CHARACTERS = 8, 2000
INSTALL = {
    "gcloud": "install the Google Cloud CLI: https://cloud.google.com/sdk/docs/install",
    "kubectl": "gcloud components install kubectl",
    "gke-gcloud-auth-plugin": "gcloud components install gke-gcloud-auth-plugin",
    "docker": "the same command with GKE_TOOLS_BUILDER=cloudbuild, or install Docker",
}
# Not any "not found": kubectl says so of a login helper too.
MISSING = re.compile(r"\bNOT_FOUND\b|\(NotFound\)|code=404|HTTPError 404|was not found|Image not found")
DENIED = re.compile(r"permission[_ ]denied|code=403|forbidden|required '.*' permission", re.IGNORECASE)
SIGNED_OUT = re.compile(r"auth login|active account|reauthentication", re.IGNORECASE)
# How a variable stands in the words of a dry run: a NUL is in no other word.
VARIABLE = re.compile("\0([A-Z_]+)\0")


class Calls:
    """The calls of one command; in a dry run they are printed, and nothing that they look for is there."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.dry = settings, settings.dry_run

    def require(self, *programs: str) -> None:
        """Raises BadInputError, before anything is done, when a program is not on PATH."""
        for program in programs:
            if not self.dry and shutil.which(program) is None:
                raise BadInputError(f"{program} is not on PATH", run=INSTALL[program])

    def gcloud(self, *words: str) -> list[str]:
        return ["gcloud", *words, f"--project={self.settings.gke_project_id}", "--quiet"]

    def cluster(self, verb: str, *words: str) -> list[str]:
        """The call of gcloud that does something with the cluster."""
        where = (str(self.settings.gke_cluster_name), f"--region={self.settings.gke_region}")
        return self.gcloud("container", "clusters", verb, *where, *words)

    def kubectl(self, *words: str) -> list[str]:
        return [*kubectl_words(self.settings), *words]

    def tell(self, line: str) -> None:
        """A line of progress, apart from what the command prints; in a dry run a comment among the calls."""
        if self.dry:
            line = "\n".join(f"# {part}" for part in VARIABLE.sub(r"${\1}", line).splitlines())
        print(line, file=None if self.dry else sys.stderr, flush=True)

    def run(self, argv: Sequence[str], doing: str) -> str:
        """What it prints. Raises RecipeError with its last lines when it fails or does not end in time."""
        self.tell(doing)
        if self.dry:
            print(shell(argv))
            return ""
        done = ask(argv, folder=Path("/"), seconds=CHANGE_SECONDS)
        if done.returncode:
            raise _failed(done, doing)
        return done.stdout

    def look(self, argv: Sequence[str]) -> dict[str, Any] | None:
        """What is there, as its JSON tells, or None. Raises RecipeError when that can't be found out."""
        if self.dry:
            print(f"{shell(argv)}  # is it there?")
            return None
        done, found = ask(argv, folder=Path("/"), seconds=LOOK_SECONDS), None
        if done.returncode and MISSING.search(done.stderr):
            return None
        with contextlib.suppress(ValueError, RecursionError):
            found = json.loads(done.stdout) if done.returncode == 0 else None
        if isinstance(found, dict) and found:
            return found
        raise _failed(done, "looking at what is there")

    def value(self, name: str, argv: Sequence[str], form: str) -> str:
        """The one value that it prints; in a dry run the variable `name`, which has it.

        Raises RecipeError for a value that the pattern `form` does not match.
        """
        if self.dry:
            print(f"{name}=$({shell(argv)})")
            return f"\0{name}\0"
        answer = self.run(argv, f"asking for {name}").strip()
        if not re.fullmatch(form, answer):
            raise RecipeError(f"{name} can't be read", expected=form, found=answer[:TAIL_CHARACTERS])
        return answer

    def grant(self, argv: Sequence[str], doing: str) -> None:
        """Tried again with longer and longer pauses, unless this user may not grant at all."""
        for pause in (*GRANT_PAUSES, None):
            try:
                self.run(argv, doing)
            except RecipeError as error:
                if pause is None or DENIED.search(error.facts["found"]):
                    raise
                self.tell(f"  not yet; again in {pause:g} s")
                time.sleep(pause)
            else:
                return


def kubectl_words(settings: Settings) -> list[str]:
    """How each call of kubectl begins: with the cluster's own context, whichever is the current one of the file."""
    where = f"--kubeconfig={settings.gke_kubeconfig}", f"--context={settings.gke_context}"
    return ["kubectl", *where, f"--namespace={settings.gke_namespace}"]


def shell(argv: Sequence[str]) -> str:
    """The call for a shell, which fills in the variables of `value` and takes all else as it is."""
    return " ".join(VARIABLE.sub(r"""'"${\1}"'""", shlex.quote(word)) for word in argv)


def _failed(done: CompletedProcess[str], doing: str) -> RecipeError:
    text = done.stderr.strip() or done.stdout.strip()
    tail = "\n".join(text.splitlines()[-TAIL_LINES:])[-TAIL_CHARACTERS:]
    run = f"{shlex.join(done.args)}; once it works, the same command again"
    if SIGNED_OUT.search(tail):
        run = "gcloud auth login"
    elif DENIED.search(tail):
        run = "the same with an account that has the roles of docs/gke.md"
    return RecipeError(f"{done.args[0]} failed: {doing}", found=tail or f"code {done.returncode}", run=run)
