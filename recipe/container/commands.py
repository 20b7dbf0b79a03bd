"""`recipe container`: prints what a cluster runs; --run runs it. No logic; help needs neither pins nor YAML."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path
from typing import Annotated, Literal

import typer

from recipe.container import node
from recipe.errors import BadInputError

app = typer.Typer(
    no_args_is_help=True, help="Build and start the image, join Ray, or write a manifest; prints by default."
)

RecipeName = Annotated[Literal["camel", "terminus2"], typer.Option("--recipe", help="Whose pins.")]
Run = Annotated[bool, typer.Option("--run/--print", help="Run it on this machine, or only print it.")]
Repository = Annotated[
    str | None,
    typer.Option(
        help="Of the image, with its registry; default: inkling-grpo-RECIPE. The tag follows the pins."
    ),
]
ModelRoot = Annotated[Path, typer.Option(help="Folder of the model, at the same path on every node.")]
DataDir = Annotated[
    Path, typer.Option(help="Folder of tasks, prompts and runs, at the same path on every node.")
]
Project = Annotated[
    Path | None, typer.Option(help="This project, at the same path on every node; default: this checkout.")
]
NumNodes = Annotated[int, typer.Option(help="Nodes of 8 GPUs: 6, 7 or 8.")]
HeadIp = Annotated[str, typer.Option(help="Address of the head node.")]
NodeIp = Annotated[str | None, typer.Option(help="Address of this node; default: this is the head node.")]


@app.command()
def build(
    recipe: RecipeName,
    *,
    program: Annotated[Literal["docker", "podman"], typer.Option(help="What builds it.")] = "docker",
    repository: Repository = None,
    run: Run = False,
) -> None:
    """Build the recipe's image on the pinned one."""
    from recipe.container.image import build_command
    from recipe.pins import load_pins

    _perform(build_command(load_pins(), recipe, program=program, repository=repository), run=run)


@app.command()
def start(
    recipe: RecipeName,
    *,
    repository: Repository = None,
    model_root: ModelRoot = Path("/root/models"),
    data_dir: DataDir = Path("/data"),
    project: Project = None,
    infiniband: Annotated[bool, typer.Option("--infiniband", help="Add this node's RDMA devices.")] = False,
    docker_socket: Annotated[
        bool, typer.Option("--docker-socket", help="Head node, for sandboxes of the backend docker.")
    ] = False,
    run: Run = False,
) -> None:
    """Start the container on this node."""
    from recipe.container.image import name
    from recipe.pins import load_pins

    image = name(load_pins(), recipe, repository)
    storage = _storage(model_root, data_dir, project)
    command = node.start_command(image, recipe, storage, infiniband=infiniband, docker_socket=docker_socket)
    _perform(command, run=run)


@app.command()
def check(recipe: RecipeName, *, run: Run = False) -> None:
    """Check in the container that this node is at the recipe's pins."""
    from recipe.container.image import check_command
    from recipe.pins import load_pins

    _perform(node.in_container(recipe, check_command(load_pins(), recipe)), run=run)


@app.command()
def ray(
    recipe: RecipeName,
    head_ip: HeadIp,
    *,
    node_ip: NodeIp = None,
    dashboard_host: Annotated[
        str, typer.Option(help="Where the dashboard listens; who reaches it can run jobs.")
    ] = node.DASHBOARD_HOST,
    dashboard_port: Annotated[
        int, typer.Option(help="Of the dashboard and the Jobs API.")
    ] = node.DASHBOARD_PORT,
    run: Run = False,
) -> None:
    """Start Ray in this node's container: the head's, or one that joins it."""
    head_ip = node.check_ip("HEAD_IP", head_ip)
    node.check_ip("DASHBOARD_HOST", dashboard_host, listens=True)
    if node_ip is None or node.check_ip("NODE_IP", node_ip) == head_ip:
        command = node.ray_head_command(head_ip, dashboard_host=dashboard_host, dashboard_port=dashboard_port)
    else:
        command = node.ray_worker_command(head_ip, node_ip)
    _perform(node.in_container(recipe, command), run=run)


@app.command()
def slurm(
    recipe: RecipeName,
    *,
    command: Annotated[
        str | None,
        typer.Option(help="Words to run on the head node; no shell reads them. Default: make train-RECIPE."),
    ] = None,
    image: Annotated[
        Path | None, typer.Option(help="The image as a file; default: DATA_DIR/inkling-grpo-RECIPE-TAG.sqsh.")
    ] = None,
    num_nodes: NumNodes = 8,
    model_root: ModelRoot = Path("/root/models"),
    data_dir: DataDir = Path("/data"),
    project: Project = None,
    time: Annotated[
        str | None, typer.Option(help="Limit of the job, D-HH:MM:SS; default: the partition's.")
    ] = None,
    partition: Annotated[str | None, typer.Option(help="Of the cluster.")] = None,
    account: Annotated[str | None, typer.Option(help="Whom the job is charged to.")] = None,
    run: Run = False,
) -> None:
    """Write a Slurm batch script (with pyxis), or hand it to sbatch."""
    from recipe.container.image import name
    from recipe.container.slurm import SlurmJob, script
    from recipe.pins import load_pins

    pins = load_pins()
    job = SlurmJob(
        image=data_dir / f"{name(pins, recipe).replace(':', '-')}.sqsh" if image is None else image,
        storage=_storage(model_root, data_dir, project),
        command=f"make train-{recipe} NUM_NODES={num_nodes}" if command is None else command,
        num_nodes=num_nodes,
        time=time,
        partition=partition,
        account=account,
    )
    _hand_over(script(pins, recipe, job), ["sbatch"], run=run)


@app.command()
def kuberay(
    recipe: RecipeName,
    repository: Annotated[
        str, typer.Option(help="Of the image, with its registry. The tag follows the pins.")
    ],
    *,
    claim: Annotated[
        str, typer.Option(help="PersistentVolumeClaim that every pod can write.")
    ] = "inkling-grpo",
    num_nodes: NumNodes = 8,
    rdma_resource: Annotated[
        str | None, typer.Option(help="Resource name of the RDMA devices, such as rdma/hca.")
    ] = None,
    run: Run = False,
) -> None:
    """Write a KubeRay manifest, or hand it to kubectl."""
    from recipe.container.image import name
    from recipe.container.kuberay import KubeRayCluster, manifest
    from recipe.pins import load_pins

    pins = load_pins()
    cluster = KubeRayCluster(name(pins, recipe, repository), claim, num_nodes, rdma_resource)
    _hand_over(manifest(pins, recipe, cluster), ["kubectl", "apply", "--filename", "-"], run=run)


def _storage(model_root: Path, data_dir: Path, project: Path | None) -> node.Storage:
    from recipe.pins import PROJECT_ROOT

    return node.Storage(model_root, data_dir, project or PROJECT_ROOT)


def _perform(command: list[str], *, run: bool) -> None:
    """Prints the command for a shell, or becomes it."""
    if not run:
        typer.echo(shlex.join(command))
        return
    try:
        os.execvp(command[0], command)  # noqa: S606 - an argument list, no shell
    except OSError as error:
        raise _not_run(command, error) from None


def _hand_over(text: str, command: list[str], *, run: bool) -> None:
    """Prints the text, or runs the command with it and ends as it ends."""
    if not run:
        typer.echo(text, nl=False)
        return
    try:
        done = subprocess.run(command, input=text, encoding="utf-8", check=False)
    except OSError as error:
        raise _not_run(command, error) from None
    raise typer.Exit(done.returncode)


def _not_run(command: list[str], error: OSError) -> BadInputError:
    return BadInputError(
        f"{command[0]} can't be run", found=error.strerror, where="PATH", run="the same with --print"
    )
