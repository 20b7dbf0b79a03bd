"""docs/gke.md tells what the code does: every command, and every role that is granted."""

from __future__ import annotations

import re

import pytest

from recipe.gke.cluster import DATA
from recipe.gke.commands import app
from recipe.pins import PROJECT_ROOT
from recipe.settings import NAMES

DOCS = (PROJECT_ROOT / "docs" / "gke.md").read_text()
COMMANDS = {command.name or command.callback.__name__ for command in app.registered_commands}


def rows(heading: str) -> list[list[str]]:
    """The cells of the table with this head, less their marks and what is in brackets."""
    table = DOCS.partition(f"| {heading} |")[2].partition("\n\n")[0].splitlines()[2:]
    return [[re.sub(r" \(.*\)|`", "", cell).strip() for cell in line.strip("|").split("|")] for line in table]


def test_every_command_has_a_row_and_a_role() -> None:
    assert {row[0] for row in rows("command")} == COMMANDS
    needing = {name for row in rows("who runs") for name in row[0].split(", ")}
    assert needing >= COMMANDS


def test_the_roles_that_are_granted_are_those_of_the_table() -> None:
    granted = [
        (holder, role, on)
        for holder, places in DATA["grants"].items()
        for on, roles in places.items()
        for role in roles
    ]
    assert sorted(granted) == sorted((row[0], row[1], row[2]) for row in rows("account"))


@pytest.mark.parametrize("name", sorted(set(re.findall(r"\bGKE_[A-Z_]+\b", DOCS)) - {"GKE_"}))
def test_every_setting_that_is_named_exists(name) -> None:
    assert name in NAMES
