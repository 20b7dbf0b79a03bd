"""Audits what uv.lock installs: where each package comes from, why it is there, and what is known against it.

    make audit                     the lock, and the advisories where their service is reached
    make audit ARGS=--require      fails where it is not

Exit code 0: nothing found, and the last line says whether the service was asked; 1: something was found, pip-audit
broke off, or the service was not reached and --require given. What pip-audit finds and somebody has looked at is
accepted in tools/audit.toml, until a day.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import httpx
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
# Not PyPI's own service, pip-audit's default: pip-audit passes over what that does not know, as a mirror without
# advisories knows nothing, and calls it clean.
SERVICE = "https://api.osv.dev/v1/query"
# The example of OSV's documentation: a service that knows nothing against it knows no advisories.
KNOWN_BAD: dict[str, Any] = {"package": {"name": "jinja2", "ecosystem": "PyPI"}, "version": "2.4.1"}
ASK_SECONDS = 15.0
AUDIT_SECONDS = 900.0  # 200 requests, one after the other, to a slow service
SHA256 = re.compile("sha256:[0-9a-f]{64}")
# Where a package of pyproject.toml has to be used: a run's in the package, a group's anywhere of ours.
OF_RUNS, OF_GROUPS = ("recipe",), ("recipe", "tests", "benchmarks", "rehearsal", "tools")
WHERE_PROGRAMS_RUN = ("Makefile", ".ci/run")

Table = Mapping[str, Any]


def lock_findings(lock: Table, project: str) -> Iterator[str]:
    """What is wrong with where packages come from: one registry, a SHA-256 of each file."""
    registries = {one["source"]["registry"] for one in lock["package"] if "registry" in one["source"]}
    if len(registries) > 1:
        yield f"uv.lock has packages of several registries: {', '.join(sorted(registries))}"
    for one in lock["package"]:
        name = f"{one['name']} {one.get('version', '')}".strip()
        files = [*one.get("wheels", ()), *([one["sdist"]] if "sdist" in one else ())]
        if one["source"] == {"editable": "."} and one["name"] == project:
            continue
        if set(one["source"]) != {"registry"}:
            yield f"{name} comes from no registry: {one['source']}"
        elif not files:
            yield f"{name} has no file"
        elif unsealed := [
            file.get("url", "?") for file in files if not SHA256.fullmatch(file.get("hash", ""))
        ]:
            yield f"{name} has files without a SHA-256: {', '.join(unsealed)}"


def direct_findings(root: Path, project: Table, lock: Table, reasons: Table) -> Iterator[str]:
    """Which packages of pyproject.toml nobody uses, or without a reason; which reasons are of none."""
    main = project["project"]
    of_runs = _names(main["dependencies"], *main.get("optional-dependencies", {}).values())
    of_groups = _names(*project.get("dependency-groups", {}).values())
    asked = dict.fromkeys(of_groups, OF_GROUPS) | dict.fromkeys(of_runs, OF_RUNS)
    for name in sorted(reasons.keys() - asked.keys()):
        yield f"tools/audit.toml gives a reason for {name}, which pyproject.toml does not ask for"
    imported = {room: used_modules(root / room) for room in OF_GROUPS}
    programs = " ".join((root / path).read_text() for path in WHERE_PROGRAMS_RUN if (root / path).exists())
    for name, rooms in sorted(asked.items()):
        entry = reasons.get(name, {})
        if not str(entry.get("reason", "")).strip():
            yield f"{name} has no reason in tools/audit.toml"
        elif "program" in entry:
            if not re.search(rf"(?<![\w-]){re.escape(entry['program'])}(?![\w-])", programs):
                yield f"{name} is not used: {' and '.join(WHERE_PROGRAMS_RUN)} run no {entry['program']}"
        elif "bounds" in entry:
            if name not in _dependencies(lock, entry["bounds"]):
                yield f"{name} is not used: {entry['bounds']} no longer depends on it"
        elif not any(
            (module := entry.get("module", name.replace("-", "_"))) in imported[room] for room in rooms
        ):
            yield f"{name} is not used: nothing in {', '.join(rooms)} imports {module}"


def _names(*lists: Sequence[Any]) -> list[str]:
    return [
        canonicalize_name(Requirement(one).name) for some in lists for one in some if isinstance(one, str)
    ]


def _dependencies(lock: Table, package: str) -> set[str]:
    found = [one.get("dependencies", ()) for one in lock["package"] if one["name"] == package]
    return {one["name"] for some in found for one in some}


def used_modules(room: Path) -> set[str]:
    """The modules that Python files import, or look for with find_spec."""
    found = set()
    for path in room.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found.add(str(node.module).partition(".")[0])
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("find_spec"):
                found |= {str(word.value) for word in node.args if isinstance(word, ast.Constant)}
    return found


def accepted_findings(accepted: Sequence[Table], lock: Table, today: date) -> Iterator[str]:
    """Which accepted advisories are past their day, say nothing, or are of no package of the lock."""
    locked = {one["name"] for one in lock["package"]}
    for one in accepted:
        name = f"{one.get('id')} of {one.get('package')}, accepted in tools/audit.toml,"
        if not all(one.get(key) for key in ("id", "package", "reason")) or type(one.get("until")) is not date:
            yield f"{name} needs an id, a package, a reason and an until, a day without quotes"
        elif one["package"] not in locked:
            yield f"{name} is of a package that uv.lock has not"
        elif one["until"] < today:
            yield f"{name} was to be looked at again by {one['until']}"


def why_not_reached(service: str) -> str | None:
    """Why `service` tells nothing, None when it does: it is asked about a version that has advisories."""
    try:
        answer = httpx.post(service, json=KNOWN_BAD, timeout=ASK_SECONDS).raise_for_status().json()
    except (httpx.HTTPError, ValueError) as error:
        return str(error) or type(error).__name__
    if isinstance(answer, dict) and answer.get("vulns"):
        return None
    return f"it knows no advisory of {KNOWN_BAD['package']['name']} {KNOWN_BAD['version']}, which has several"


def advisories(lock: Table, project: str, service: str) -> list[dict[str, Any]]:
    """What pip-audit finds, of every package of the lock, for whichever machine: package, version, id, aliases, fixes.

    Raises SystemExit when it does not come to an end.
    """
    pins = [f"{one['name']}=={one['version']}\n" for one in lock["package"] if one["name"] != project]
    with tempfile.TemporaryDirectory() as folder:
        requirements, found = Path(folder) / "requirements.txt", Path(folder) / "found.json"
        requirements.write_text("".join(pins))
        command = [sys.executable, "-m", "pip_audit", "--requirement", str(requirements), "--no-deps"]
        command += ["--disable-pip", "--progress-spinner=off", "--vulnerability-service=osv"]
        command += [f"--osv-url={service}", "--format=json", f"--output={found}"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=AUDIT_SECONDS)
        except subprocess.TimeoutExpired:
            sys.exit(f"error: pip-audit did not end within {AUDIT_SECONDS:g} s")
        if not found.exists():
            said = done.stderr.strip().splitlines() or ["nothing"]
            sys.exit(f"error: pip-audit failed\n  expected its list of advisories\n  found    {said[-1]}")
        packages = json.loads(found.read_text())["dependencies"]
    if len(packages) != len(pins) or any("skip_reason" in one for one in packages):
        sys.exit(
            f"error: pip-audit passed packages over: {len(pins)} were given, it tells of {len(packages)}"
        )
    return [
        {"package": one["name"], "version": one["version"], **bad} for one in packages for bad in one["vulns"]
    ]


def advisory_findings(found: Sequence[Table], accepted: Sequence[Table]) -> Iterator[str]:
    """Those that nobody has accepted, by id or alias, for this package."""
    taken = {(one.get("package"), one.get("id")) for one in accepted}
    for one in found:
        if not taken & {(one["package"], name) for name in (one["id"], *one["aliases"])}:
            fixed = ", ".join(one["fix_versions"]) or "no version yet"
            names = ", ".join((one["id"], *one["aliases"]))
            told = f"{one['package']} {one['version']} has an advisory: {names}; mended in {fixed}"
            yield f"{told}; run uv lock --upgrade-package {one['package']}"


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--require", action="store_true", help="fail where the service is not reached")
    parser.add_argument("--service", default=SERVICE, help="another that speaks as OSV's does")
    asked = parser.parse_args(words)
    lock, project, own = (
        tomllib.loads((ROOT / name).read_text()) for name in ("uv.lock", "pyproject.toml", "tools/audit.toml")
    )
    name, accepted = project["project"]["name"], own.get("accepted", [])
    findings = [
        *lock_findings(lock, name),
        *direct_findings(ROOT, project, lock, own["packages"]),
        *accepted_findings(accepted, lock, datetime.now(UTC).date()),
    ]
    count = len(lock["package"]) - 1
    print(f"{count} packages in uv.lock, {len(own['packages'])} of them asked for in pyproject.toml")
    for finding in findings:  # now, since pip-audit may break off
        print(f"found: {finding}")
    if reason := why_not_reached(asked.service):
        told = f"NO advisory was asked for: {asked.service} was not reached: {reason}; the lock alone was checked"
        further = [f"{asked.service} was not reached: {reason}"] if asked.require else []
    else:
        found = advisories(lock, name, asked.service)
        further = [*advisory_findings(found, accepted)]
        told = (
            f"{asked.service} was asked about all {count}: {len(found)} advisories, {len(accepted)} accepted"
        )
    for finding in further:
        print(f"found: {finding}")
    print(told)
    sys.exit(int(bool(findings or further)))


if __name__ == "__main__":
    main()
