"""The model's flags, which a shell file of Miles' holds as an array: read without running it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from recipe.engines.miles.flags import Flag
from recipe.errors import RecipeError

MODEL_ARGS = Path("scripts/models/inkling-small.sh")
ARRAY = re.compile(r"^MODEL_ARGS=\(\n(.*?)^\)", re.MULTILINE | re.DOTALL)
# NAME="${OTHER:-default}", the default being what the job gets: it sets no such variable.
DEFAULTED = re.compile(r'^(\w+)="?\$\{\w+:-([^}]*)\}"?$', re.MULTILINE)
VARIABLE = re.compile(r"\$\{?(\w+)\}?")


def model_flags(miles: Path) -> Iterator[Flag]:
    """The flags of MODEL_ARGS, in order. Raises RecipeError when the file can't be read so."""
    path = miles / MODEL_ARGS
    text = path.read_text() if path.is_file() else ""
    array = ARRAY.search(text)
    if array is None:
        raise RecipeError(
            "the model's flags can't be read",
            expected="an array MODEL_ARGS",
            found="no such array" if text else "no such file",
            where=f"{path}:1",
        )
    known = dict(DEFAULTED.findall(text))
    first = text.count("\n", 0, array.start(1)) + 1
    for number, line in enumerate(array[1].splitlines(), first):
        words = shlex.split(VARIABLE.sub(lambda one: known.get(one[1], one[0]), line), comments=True)
        starts = [index for index, word in enumerate(words) if word.startswith("--")]
        for start, end in zip(starts, [*starts[1:], len(words)], strict=False):
            yield Flag(words[start], tuple(words[start + 1 : end]), f"{path}:{number}")
