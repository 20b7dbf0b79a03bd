"""What another commit of Miles or of SGLang does to the job's flags, told from the two trees."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from recipe.drift.bump import Compared
from recipe.drift.checkouts import SETTINGS
from recipe.engines.miles.contract.check import flag_lines
from recipe.engines.miles.contract.sources import sources_of
from recipe.engines.miles.environment import environment
from recipe.engines.miles.flags import flags
from recipe.errors import BadInputError, RecipeError
from recipe.programs import git, last_line
from recipe.settings import Settings

WORDS = {"ok": "fits", "DRIFT": "does not fit", "skip": "not judged"}
WITH_FLAGS = ("miles", "sglang")


def flags_of(settings: Settings) -> Compared:
    """For `bump`: a line for each flag of this job whose fate differs between the two commits."""

    def compared(source: str, folder: Path, old: str, new: str) -> Iterator[str]:
        if source not in WITH_FLAGS:
            return
        try:
            before, after = (_verdicts(source, folder, rev, settings) for rev in (old, new))
        except RecipeError as error:
            yield f"what becomes of the flags of {source}: unknown, {error.problem}"
            return
        changed = {name for name in before | after if before.get(name) != after.get(name)}
        for name in sorted(changed):
            was, is_now = (WORDS.get(told.get(name, ""), "not there") for told in (before, after))
            yield f"{name}: {was} -> {is_now}"
        yield f"flags that {source} registers otherwise than before: {len(changed)} of {len(after)}"

    return compared


def _verdicts(source: str, folder: Path, rev: str, settings: Settings) -> dict[str, str]:
    with TemporaryDirectory() as scratch:
        archive, tree = Path(scratch, "tree.tar"), Path(scratch, "tree")
        made = git(folder, "archive", f"--output={archive}", rev)
        if made.returncode:
            raise BadInputError(f"{rev} can't be read", found=last_line(made.stderr), where=folder)
        with tarfile.open(archive) as files:
            files.extractall(tree, filter="data")
        there = settings.model_copy(update={SETTINGS[source]: tree})
        job = flags(there, there.run_dir), environment(there, "http://head:11000", there.run_dir)
        return {line.name: line.status for line in flag_lines(sources_of(there), *job)}
