"""A Slurm batch script: every node starts the container and Ray, and the head node runs one command."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from recipe.container import image, node
from recipe.errors import BadInputError
from recipe.files import read_text
from recipe.pins import Pins

TEMPLATE = image.CONTEXT / "slurm.sh"
# Unpacking an image of tens of GB takes minutes, and not the same on each node.
WAIT_SECONDS = 1200
# What sbatch takes, of that what a directive can hold without quotes.
NAME = r"[\w.+-]+"
FORMS = {
    "time": (r"([0-9]+-)?[0-9]+(:[0-9]+){0,2}", "minutes, HH:MM:SS or D-HH:MM:SS"),
    "partition": (rf"{NAME}(,{NAME})*", "a name, or names with commas between them"),
    "account": (NAME, "a name of letters, digits and . + _ -"),
}


@dataclass(frozen=True)
class SlurmJob:
    """What the cluster and its user choose; `image` is the image as a squashfs file on shared storage."""

    image: Path
    storage: node.Storage
    command: str
    num_nodes: int
    time: str | None = None
    partition: str | None = None
    account: str | None = None


def script(pins: Pins, recipe: str, job: SlurmJob) -> str:
    """The batch script, ready for `sbatch`. Raises BadInputError for a value that it can't hold."""
    gpus = node.check_num_nodes(job.num_nodes) * node.GPUS_PER_NODE
    import_image = ["enroot", "import", "--output", str(job.image), f"dockerd://{image.name(pins, recipe)}"]
    wait = ["python3", f"{image.SCRIPTS}/wait_for_gpus.py", str(gpus), str(WAIT_SECONDS)]
    values = {
        "directives": "\n".join(f"#SBATCH {option}" for option in directives(recipe, job)),
        "import_image": shlex.join(import_image),
        "container": "\n".join(f"  {shlex.quote(option)}" for option in container_options(job)),
        "check": shlex.join(image.check_command(pins, recipe)),
        "ray_head": _shell(node.ray_head_command("@HEAD_IP@")),
        "ray_worker": _shell(node.ray_worker_command("@HEAD_IP@", "@NODE_IP@")),
        "wait": shlex.join(wait),
        "command": shlex.join(_words(job.command)),
        "num_nodes": str(job.num_nodes),
        "num_workers": str(job.num_nodes - 1),
    }
    template = read_text(TEMPLATE)
    return re.sub(r"@([a-z_]+)@", lambda match: values[match[1]], template)


def directives(recipe: str, job: SlurmJob) -> list[str]:
    """The options of `sbatch`. Raises BadInputError for a value that a directive can't hold."""
    chosen = {"time": job.time, "partition": job.partition, "account": job.account}
    return [
        f"--job-name={node.container_name(recipe)}",
        "--output=%x-%j.log",
        f"--nodes={job.num_nodes}",
        "--ntasks-per-node=1",
        f"--gpus-per-node={node.GPUS_PER_NODE}",
        # The whole node and all of its memory: Adam's state is there while SGLang serves.
        "--exclusive",
        "--mem=0",
        # A run can't be resumed exactly: a silent second start would be another run.
        "--no-requeue",
        # The limits of the compute nodes, not of the login node: RDMA needs locked memory.
        "--propagate=NONE",
        *(
            f"--{name}={node.check_form(name, value, *FORMS[name])}"
            for name, value in chosen.items()
            if value is not None
        ),
    ]


def container_options(job: SlurmJob) -> list[str]:
    """The options that pyxis adds to `srun`.

    Network and IPC are the node's own, and so is /dev/shm. Root and without the user's home, since the
    checkouts lie in root's home of the image; writable, since Ray and the compilers write there.
    """
    mounts = ",".join(f"{outside}:{inside}" for outside, inside in job.storage.mounts())
    # An empty path is the working directory.
    path = str(job.image.absolute()) if job.image.name else ""
    image_file = node.check_form(
        "image", path, r"[\w.+:/=%-]+", "a file, of letters, digits and . + : / = % _ -"
    )
    return [
        f"--container-image={image_file}",
        f"--container-mounts={mounts}",
        f"--container-workdir={node.PROJECT_DIR}",
        "--container-remap-root",
        "--no-container-mount-home",
        "--container-writable",
    ]


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
