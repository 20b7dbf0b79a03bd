"""`recipe container`: prints what a cluster runs; --run runs it. No logic."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path
from typing import Annotated, Literal

import typer

from recipe.container import image, node
from recipe.container import kuberay as kuberay_cluster
from recipe.container import slurm as slurm_job
from recipe.errors import BadInputError
from recipe.pins import PROJECT_ROOT, load_pins

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
    Path,
    typer.Option(
        help="This project, at the same path on every node; default: this checkout.", show_default=False
    ),
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
    _perform(image.build_command(load_pins(), recipe, program=program, repository=repository), run=run)


@app.command()
def start(
    recipe: RecipeName,
    *,
    repository: Repository = None,
    model_root: ModelRoot = Path("/root/models"),
    data_dir: DataDir = Path("/data"),
    project: Project = PROJECT_ROOT,
    infiniband: Annotated[bool, typer.Option("--infiniband", help="Add this node's RDMA devices.")] = False,
    docker_socket: Annotated[
        bool, typer.Option("--docker-socket", help="Head node, for sandboxes of the backend docker.")
    ] = False,
    run: Run = False,
) -> None:
    """Start the container on this node."""
    shared = node.mounts(model_root, data_dir, project)
    name = image.name(load_pins(), recipe, repository)
    command = node.start_command(name, recipe, shared, infiniband=infiniband, docker_socket=docker_socket)
    _perform(command, run=run)


@app.command()
def check(recipe: RecipeName, *, run: Run = False) -> None:
    """Check in the container that this node is at the recipe's pins."""
    _perform(node.in_container(recipe, image.check_command(load_pins(), recipe)), run=run)


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
    file: Annotated[
        Path | None,
        typer.Option("--image", help="The image as a file; default: DATA_DIR/inkling-grpo-RECIPE-TAG.sqsh."),
    ] = None,
    num_nodes: NumNodes = 8,
    model_root: ModelRoot = Path("/root/models"),
    data_dir: DataDir = Path("/data"),
    project: Project = PROJECT_ROOT,
    time: Annotated[
        str | None, typer.Option(help="Limit of the job, D-HH:MM:SS; default: the partition's.")
    ] = None,
    partition: Annotated[str | None, typer.Option(help="Of the cluster.")] = None,
    account: Annotated[str | None, typer.Option(help="Whom the job is charged to.")] = None,
    run: Run = False,
) -> None:
    """Write a Slurm batch script (with pyxis), or hand it to sbatch."""
    pins = load_pins()
    text = slurm_job.script(
        pins,
        recipe,
        file=data_dir / f"{image.name(pins, recipe).replace(':', '-')}.sqsh" if file is None else file,
        mounts=node.mounts(model_root, data_dir, project),
        command=f"make train-{recipe} NUM_NODES={num_nodes}" if command is None else command,
        num_nodes=num_nodes,
        time=time,
        partition=partition,
        account=account,
    )
    _perform(["sbatch"], run=run, text=text)


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
    text = kuberay_cluster.manifest(
        load_pins(),
        recipe,
        repository=repository,
        claim=claim,
        num_nodes=num_nodes,
        rdma_resource=rdma_resource,
    )
    _perform(["kubectl", "apply", "--filename", "-"], run=run, text=text)


def _perform(command: list[str], *, run: bool, text: str | None = None) -> None:
    """Prints the text, or without one the command for a shell; or runs the command with the text, else becomes it."""
    if not run:
        typer.echo(f"{shlex.join(command)}\n" if text is None else text, nl=False)
        return
    try:
        if text is None:
            os.execvp(command[0], command)  # noqa: S606 - an argument list, no shell
        done = subprocess.run(command, input=text, encoding="utf-8", check=False)
    except OSError as error:
        raise BadInputError(
            f"{command[0]} can't be run", found=error.strerror, where="PATH", run="the same with --print"
        ) from None
    raise typer.Exit(done.returncode)
