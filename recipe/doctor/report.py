"""`recipe doctor`: every check in one table, the nodes in another, and the exit code."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from recipe import rules
from recipe.doctor import checks
from recipe.doctor.node_checks import NODE_CHECKS
from recipe.doctor.nodes import judge
from recipe.doctor.results import Result, guarded, require_known
from recipe.settings import Settings

RAY, RAY_HOLDS = "Ray", "a cluster that runs jobs"
NAMES = (*(check.name for check in checks.CHECKS), RAY, *(check.name for check in NODE_CHECKS))
STYLES = {"ok": "green", "FAIL": "bold red", "warn": "yellow", "skip": "dim"}
# Where the output is no terminal: lines that a file or a log can hold.
WIDTH = 200
CELL = 40


def report(
    settings: Settings,
    only: Collection[str] = (),
    skip: Collection[str] = (),
    *,
    as_json: bool = False,
    cluster: bool = True,
) -> int:
    """Prints what each check found, as tables or as one JSON object. Returns 1 when one failed, or when nothing of
    `only` could be checked; else 0.

    Without `cluster`, what needs it or its head node is skipped. Raises BadInputError for settings that don't go
    together and for a name that is no check.
    """
    require_known([*only, *skip], NAMES)
    rules.check(settings)
    here = cluster or settings.engine == "local"
    results = checks.look(settings, only, skip, here=here)
    if settings.engine == "miles":
        results += _of_cluster(settings, only, skip, cluster=cluster)
    failed = sum(result.verdict == "FAIL" for result in results)
    nothing = bool(only) and all(result.verdict == "skip" for result in results)
    if as_json:
        told = [{key: value for key, value in asdict(one).items() if key != "errors"} for one in results]
        print(json.dumps({"failed": failed, "results": told}, indent=2, default=str))
    else:
        _print(results, "; none of what was chosen could be checked" if nothing else "")
    return int(failed > 0 or nothing)


def _of_cluster(
    settings: Settings, only: Collection[str], skip: Collection[str], *, cluster: bool
) -> list[Result]:
    wanted = [name for name in (RAY, *(check.name for check in NODE_CHECKS)) if not only or name in only]
    if not wanted or not cluster or RAY in skip:
        return [Result(name, "skip", "it needs the cluster") for name in wanted]
    from recipe.run.cluster import stage_plugins
    from recipe.run.dashboard import find_ray
    from recipe.run.interrupts import Interrupts
    from recipe.run.nodes import ask

    nodes: list[dict[str, Any]] = []

    def look() -> Result:
        ray = find_ray(settings)
        with Interrupts() as interrupts, tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            nodes.extend(ask(settings, ray, stage_plugins(folder), folder / "nodes.log", interrupts))
        return Result(RAY, "ok", f"its dashboard at {ray.url}", RAY_HOLDS)

    told = guarded(RAY, look)
    if told.errors:
        return [told, *(Result(name, "skip", "no node was asked") for name in wanted if name != RAY)]
    return [told] * (RAY in wanted) + judge(nodes, settings, only, skip)


def _print(results: Sequence[Result], remark: str = "") -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=max(WIDTH, shutil.get_terminal_size().columns))
    table = Table("verdict", "check", "found", "expected", "what to run", box=None, pad_edge=False)
    for one in results:
        bad = one.verdict in ("FAIL", "warn")
        words = (one.check, one.found, one.expected, one.run if bad else "")
        table.add_row(Text(one.verdict, STYLES[one.verdict]), *map(Text, words))
    console.print(table)
    addresses = list(dict.fromkeys(ip for one in results for ip in one.cells))
    if addresses:
        console.print("\nBy node; * differs or does not do")
        console.print(_by_node(results, addresses))
    counts = {verdict: sum(one.verdict == verdict for one in results) for verdict in STYLES}
    told = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    console.print(f"\ndoctor: {told}{remark}")


def _by_node(results: Sequence[Result], addresses: Sequence[str]) -> Table:
    # Eight nodes are wider than most terminals: cells are folded, and no name of a check or a node is lost.
    columns = [Column(ip, overflow="fold") for ip in addresses]
    table = Table(Column("check", no_wrap=True), *columns, box=None, pad_edge=False)
    for one in results:
        if one.cells:
            told = {ip: Text(text) for ip, text in one.cells.items()}
            told |= {ip: Text(f"* {one.cells[ip]}", "bold red") for ip in one.bad}
            for text in told.values():
                text.truncate(CELL, overflow="ellipsis")
            table.add_row(one.check, *(told.get(ip, "") for ip in addresses))
    return table
