"""`recipe gke`: the commands of the sandbox cluster and their help."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from recipe.errors import BadInputError
from recipe.gke import cluster, operations, tools_image
from recipe.gke.calls import Calls
from recipe.resolve import load_sources

app = typer.Typer(no_args_is_help=True, help="Create, scale, guard and clear a cluster for sandboxes on GKE.")

Assignments = Annotated[
    list[str] | None, typer.Argument(metavar="[NAME=VALUE]...", help="Settings; see docs/gke.md.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print every call for a shell; make none.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do it: without, the calls are only printed.")]


@app.command()
def create(
    assignments: Assignments = None,
    *,
    update: Annotated[bool, typer.Option("--update", help="Change what differs, where that can be.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Create what is missing of the cluster and what it needs; may be run again."""
    cluster.create(_calls(assignments, dry=dry_run), update=update)


@app.command()
def scale(
    words: Annotated[list[str], typer.Argument(metavar="NODES|POOL=NODES [NAME=VALUE]...")],
    *,
    yes: Annotated[bool, typer.Option("--yes", help="A pool may lose nodes, and their sandboxes.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Set the nodes of every pool of sandboxes, or of one; rounded up to as many in each zone."""
    given = [re.fullmatch(r"(?:([a-z][a-z0-9-]*)=)?([0-9]{1,4})", word) for word in words]
    calls = _calls([word for word, size in zip(words, given, strict=True) if not size], dry=dry_run)
    known, sizes = cluster.pools(calls), dict[str, int]()
    for size in filter(None, given):
        for pool in [size[1]] if size[1] else known:
            sizes[pool] = int(size[2])
    if not sizes:
        raise BadInputError("how many nodes is not said", expected="NODES, or POOL=NODES")
    if strange := sizes.keys() - known:
        raise BadInputError(f"no pool of GKE_NODE_POOLS: {', '.join(strange)}", expected=", ".join(known))
    operations.scale(calls, sizes, yes=yes)


@app.command("apply-network-policies")
def apply_network_policies(
    assignments: Assignments = None,
    *,
    no_web_egress: Annotated[bool, typer.Option("--no-web-egress", help="No internet at all.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Let sandboxes reach a name server and the public web, and nothing else."""
    operations.apply_network_policies(_calls(assignments, dry=dry_run), web_egress=not no_web_egress)


def _destructive(do: Callable[[Calls], None], name: str) -> Callable[..., None]:
    def command(assignments: Assignments = None, *, yes: Yes = False, dry_run: DryRun = False) -> None:
        calls = _calls(assignments, dry=dry_run or not yes)
        do(calls)
        if not yes:
            print(
                f"nothing was done: end every run on the cluster, then recipe gke {name} --yes",
                file=sys.stderr,
            )

    return command


def _other(do: Callable[[Calls], None]) -> Callable[..., None]:
    def command(assignments: Assignments = None, *, dry_run: DryRun = False) -> None:
        do(_calls(assignments, dry=dry_run))

    return command


for _do in (operations.down, operations.clear_sandboxes, operations.delete):
    _name = _do.__name__.replace("_", "-")
    app.command(_name, help=_do.__doc__)(_destructive(_do, _name))
for _do in (cluster.credentials, operations.status, tools_image.tools_image):
    app.command(_do.__name__.replace("_", "-"), help=_do.__doc__)(_other(_do))


def _calls(words: list[str] | None, *, dry: bool) -> Calls:
    """Raises BadInputError when a setting or a program is missing, before anything is done."""
    settings = load_sources([*(words or []), *(["DRY_RUN=1"] if dry else [])])
    for name in ("gke_project_id", "gke_region", "gke_cluster_name"):
        if getattr(settings, name) is None:
            meaning = type(settings).model_fields[name].description
            raise BadInputError(f"{name.upper()} is not set", expected=meaning, where=".env or environment")
    calls = Calls(settings)
    calls.require("gcloud")
    return calls
