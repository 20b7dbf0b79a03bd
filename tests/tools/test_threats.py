"""What docs/threats.md names as shown by a test or a target is there."""

from __future__ import annotations

import re
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
TEXT = (PROJECT / "docs" / "threats.md").read_text()


def missing(text: str) -> set[str]:
    """The tests, targets and files that `text` names and that are not there."""
    targets = re.findall(r"^([a-z0-9-]+):", (PROJECT / "Makefile").read_text(), re.MULTILINE)
    paths = re.findall(r"\b(?:tests|tools)/[\w/.-]*\w", text)
    wrong = {path for path in paths if not (PROJECT / path).exists()}
    return wrong | {name for name in re.findall(r"`make ([a-z0-9-]+)`", text) if name not in targets}


def test_every_threat_names_what_shows_its_defence():
    rows = [line.split("|")[1:-1] for line in TEXT.splitlines() if line.startswith("|")][2:]
    assert len(rows) > 8
    for row in rows:
        assert len(row) == 4
        assert re.search(r"tests/", row[3]), row
    assert missing(TEXT) == set()


def test_a_name_that_is_not_there_is_noticed():
    assert missing("tests/tools/test_gone.py, tools/gone.toml, tests/tools, `make gone`") == {
        "tests/tools/test_gone.py",
        "tools/gone.toml",
        "gone",
    }
