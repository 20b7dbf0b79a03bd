"""A Slurm batch script: every node starts the container and Ray, and the head node runs one command."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from recipe.container import image, node
from recipe.errors import BadInputError
from recipe.pins import Pins

TEMPLATE = image.CONTEXT / "slurm.sh"
# What sbatch takes, of that what a directive can hold without quotes.
NAME, FILE = r"[\w.+-]+", r"[\w.+:/=%-]+"
FORMS = {
    "time": (r"([0-9]+-)?[0-9]+(:[0-9]+){0,2}", "minutes, HH:MM:SS or D-HH:MM:SS"),
    "partition": (rf"{NAME}(,{NAME})*", "a name, or names with commas between them"),
    "account": (NAME, "a name of letters, digits and . + _ -"),
}


def script(
    pins: Pins,
    recipe: str,
    *,
    file: Path,
    mounts: Sequence[tuple[str, str]],
    command: str,
    num_nodes: int,
    **chosen: str | None,
) -> str:
    """The batch script, ready for `sbatch`. Raises BadInputError for a value that it can't hold.

    `file` is the image as a squashfs file on shared storage; `chosen` are options of `sbatch`, of those in FORMS.
    """
    # An empty path is the working directory.
    path = str(file.absolute()) if file.name else ""
    values = {
        "name": node.container_name(recipe),
        "gpus_per_node": str(node.GPUS_PER_NODE),
        "gpus": str(node.check_num_nodes(num_nodes) * node.GPUS_PER_NODE),
        "chosen": "\n".join(
            f"#SBATCH --{name}={node.check_form(name, value, *FORMS[name])}"
            for name, value in chosen.items()
            if value is not None
        ),
        "image": image.name(pins, recipe),
        "file": node.check_form("image", path, FILE, "a file, of letters, digits and . + : / = % _ -"),
        "container_mounts": shlex.quote(f"--container-mounts={','.join(map(':'.join, mounts))}"),
        "project": node.PROJECT_DIR,
        "check": shlex.join(image.check_command(pins, recipe)),
        "ray_head": _shell(node.ray_head_command("@HEAD_IP@")),
        "ray_worker": _shell(node.ray_worker_command("@HEAD_IP@", "@NODE_IP@")),
        "scripts": image.SCRIPTS,
        "command": shlex.join(_words(command)),
        "num_nodes": str(num_nodes),
        "num_workers": str(num_nodes - 1),
    }
    return node.filled(TEMPLATE, values)


def _words(command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise BadInputError("the command can't be read", found=f"{command!r} ({error})") from None
    if not words or not re.search(r"\w", words[0]):
        raise BadInputError(
            "the command has no program",
            expected="a program and its arguments; no shell reads them",
            found=command,
        )
    return words


def _shell(words: list[str]) -> str:
    """A command line; @NAME@ in a word is the shell's variable NAME."""
    return re.sub(r"@([A-Z_]+)@", r'"$\1"', shlex.join(words))
