"""The plan on paper: its tables, what the nodes lack for it, and what a run came to against it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from recipe.doctor.plan import CLUSTER, Plan, build
from recipe.errors import BadInputError
from recipe.files import read_text
from recipe.resolve import restore
from recipe.settings import Settings
from recipe.untrusted import size
from recipe.watch.curves import mean
from recipe.watch.history import History, manifest_of, read, require_run, settings_of
from recipe.watch.metrics import figure as shown

Node = dict[str, Any]


def report(
    settings: Settings, console: Console, *, assume: Sequence[str] = (), nodes_json: Path | None = None,
    run: Path | None = None, as_json: bool = False,
) -> int:  # fmt: skip
    """Prints the plan of `settings`, or of `run` beside what it came to. Returns 1 when something does not fit.

    Raises BadInputError for a file that is not what it should be, or for a bad assumption.
    """
    nodes = _nodes(nodes_json) if nodes_json else []
    if run:
        settings = restored(require_run(run))
        nodes = nodes or [node for node in manifest_of(run).get("nodes", ()) if _is_node(node)]
    plan = build(settings, assume)
    plan.findings += lacking(plan, nodes)
    measured = against(plan, read(run), run) if run else {}
    if as_json:
        console.print_json(
            json.dumps({key: value for key, value in asdict(plan).items() if key != "settings"}
                       | {"settings": settings.public(), "measured": measured})
        )  # fmt: skip
        return int(bool(plan.findings))
    for table in tables(plan, measured):
        console.print(table)
    for finding in plan.findings:
        console.print(f"does not fit: {finding}", soft_wrap=True, markup=False, highlight=False)
    return int(bool(plan.findings))


def restored(run: Path) -> Settings:
    """The settings of a run. Raises BadInputError when it recorded none, or not those of this version."""
    recorded = settings_of(run)
    if "env_file" not in recorded:
        raise BadInputError("the run recorded no settings", where=run / "run_manifest.json")
    return restore(recorded)


def _nodes(path: Path) -> list[Node]:
    try:
        found = json.loads(read_text(path))
    except ValueError as error:
        raise BadInputError("not JSON", found=error, where=path) from None
    nodes = found.get("nodes") if isinstance(found, dict) else found
    if not isinstance(nodes, list) or not all(map(_is_node, nodes)):
        raise BadInputError("no nodes", expected="the nodes of a run_manifest.json", where=path)
    return nodes


def _is_node(node: object) -> bool:
    gpus = node.get("gpus", []) if isinstance(node, dict) and "ip" in node else None
    return isinstance(gpus, list) and all(isinstance(gpu, dict) and "memory_mib" in gpu for gpu in gpus)


def lacking(plan: Plan, nodes: Iterable[Node]) -> Iterator[str]:
    """Each phase that needs more than a GPU or a node has; without nodes, more than the GPU that is assumed."""
    has: list[tuple[str, str, float]] = []
    for node in nodes:
        has += [("GPU memory", f"a GPU of {node['ip']}", gpu["memory_mib"] / 1024)
                for gpu in node.get("gpus", ())[:8] if gpu["memory_mib"]]  # fmt: skip
        if available := node.get("memory_available_mib"):
            has.append(("host memory", node["ip"], available / 1024))
    has = has or [("GPU memory", "a GPU", plan.assumed.get("gpu_gib", 0.0))]
    for place, who, there in dict.fromkeys(has):
        for phase, totals in plan.phases.get(place, {}).items():
            needed = totals[plan.settings.num_nodes]
            if needed > there:
                yield f"{phase}: {needed:.0f} GiB of {place}, {who} has {there:.0f}"


def against(plan: Plan, history: History, run: Path) -> dict[str, tuple[float, float]]:
    """What was planned and what a run came to, for all that its events and its folder tell.

    Raises BadInputError when no rollout has finished.
    """
    figures = {figure.name: figure.value for table in plan.figures.values() for figure in table}
    rollouts = history.rollouts
    if not rollouts:
        raise BadInputError(
            "there is nothing to compare", expected="a run with a finished rollout", found=run
        )
    of = plan.assumed
    pairs = {"tokens sampled in a trial": (of["turns"] * of["tokens_per_turn"], "response_tokens_mean"),
             "turns of a trial": (of["turns"], "turns_mean")}  # fmt: skip
    found = {name: (value, mean(history.values(key))) for name, (value, key) in pairs.items()}
    for name, phase in (("sampling a rollout", "generate"), ("training a rollout", "train")):
        found[f"{name}, s"] = (
            figures[name],
            mean([rollout.seconds[phase] for rollout in rollouts if phase in rollout.seconds]),
        )
    found["wall time, h"] = figures["wall time"], (history.now - history.started) / 3600
    for name in ("checkpoints", "trials"):
        found[f"{name}, GB"] = figures[name], size(run / name) / 1e9
    return found


def tables(plan: Plan, measured: dict[str, tuple[float, float]]) -> Iterator[Table]:
    """The plan for a terminal."""
    for place, phases in plan.phases.items():
        counts = list(next(iter(phases.values())))
        table = _table(f"{place}, GiB by phase and nodes", "phase", *(f"{count}" for count in counts))
        for phase, totals in phases.items():
            table.add_row(phase, *(f"{totals[count]:.0f}" for count in counts))
        yield table
    for title, figures in plan.figures.items():
        nodes = f" on {plan.settings.num_nodes} nodes" if title in plan.phases else ""
        table = _table(title + nodes, "", "value", "unit", "formula", "source")
        for figure in figures:
            table.add_row(figure.name, shown(figure.value), figure.unit, figure.formula, figure.source)
        yield table
    if measured:
        table = _table("plan against measured", "", "planned", "measured", "measured / planned")
        for name, (planned, came) in measured.items():
            table.add_row(name, *map(shown, (planned, came, came / planned if planned else None)))
        yield table
    table = _table("assumed (--assume NAME=VALUE)", "name", "value", "meaning")
    for name, value in plan.assumed.items():
        table.add_row(name, f"{value:g}", CLUSTER.get(name, (0, ""))[1])
    yield table


def _table(title: str, *headings: str) -> Table:
    return Table(*headings, title=title, title_justify="left", box=None, pad_edge=False)
