"""No program of ours gives a shell a text to read that holds input."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OURS = [
    path for room in ("recipe", "rehearsal", "benchmarks", "tools") for path in (ROOT / room).rglob("*.py")
]
SHELLS = {"system", "popen", "getoutput", "getstatusoutput", "create_subprocess_shell"}


def shell_calls(source: str) -> list[int]:
    """The lines that call a shell: shell=True, os.system and the like."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            asked = any(word.arg == "shell" and ast.unparse(word.value) != "False" for word in node.keywords)
            if asked or name in SHELLS:
                found.append(node.lineno)
    return found


def test_no_file_calls_a_shell():
    assert len(OURS) > 200
    assert {str(path): lines for path in OURS if (lines := shell_calls(path.read_text()))} == {}


@pytest.mark.parametrize(
    "call",
    [
        "subprocess.run(x, shell=True)",
        "os.system(x)",
        "Popen(x, shell=flag)",
        "await asyncio.create_subprocess_shell(x)",
        "os.popen(x)",
    ],
)
def test_each_way_to_call_a_shell_is_seen(call):
    assert shell_calls(f"async def f():\n    {call}") == [2]
