"""Pins: what is read, and that each malformed one is refused with its file, its line and what was expected."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from recipe.errors import BadInputError
from recipe.json_text import line_of, value_offset
from recipe.pins import PROJECT_ROOT, Feature, load_pins


@pytest.fixture
def root(tmp_path):
    shutil.copytree(PROJECT_ROOT / "pins", tmp_path / "pins")
    return tmp_path


def change(root: Path, name: str, old: str, new: str) -> int:
    """Replaces the first `old` of pins/`name`; the line that it is on."""
    path = root / "pins" / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    return text.count("\n", 0, text.index(old)) + 1


def refusal(root: Path) -> str:
    with pytest.raises(BadInputError) as refused:
        load_pins(root)
    return str(refused.value)


def test_the_pins_of_the_project_are_read():
    pins = load_pins()
    data = json.loads((PROJECT_ROOT / "pins" / "upstream.json").read_text())
    assert pins.image.reference == f"docker.io/radixark/miles@{data['image']['digest']}"
    assert set(pins.recipes) == {"camel", "terminus2"}
    source = pins.recipes["terminus2"].sources["miles"]
    written = data["recipes"]["terminus2"]["miles"]
    assert (source.url, source.rev, source.nar_hash) == (written["url"], written["rev"], written["narHash"])
    assert {feature.source for feature in pins.features_of("camel", "harbor")} == {"harbor"}


@pytest.mark.parametrize(
    ("name", "old", "new", "told"),
    [
        ("upstream.json", '"registry":', '"registri":', ["image.registry is missing", "this key"]),
        ("upstream.json", '"reason":', '"raeson": "", "reason":', ["image.raeson is unknown", "schema"]),
        ("upstream.json", '"rev": "', '"rev": "0', ["recipes.camel.miles.rev", "40 hex digits"]),
        ("upstream.json", '"digest": "sha256:', '"digest": "sha512:', ["image.digest", "sha256:"]),
        ("upstream.json", '"narHash": null', '"narHash": "x"', ["recipes.camel.miles.narHash", "'x'"]),
        ("upstream.json", "https://", "ftp://", ["recipes.camel.miles.url", "an https address"]),
        ("upstream.json", '"terminus2": {', '"terminus3": {', ["recipes.terminus3", "camel|terminus2"]),
        ("upstream.json", '"sglang": {', '"slang": {', ["recipes.camel.slang", "miles|sglang"]),
        ("upstream.json", '"schema": 1', '"schema": 2', ["schema is not as", "1", "2"]),
        ("relied_on.json", '"why":', '"whi":', ["features.0.why is missing"]),
        ("relied_on.json", '"present":', '"absent": "x", "present":', ["features.0", "exactly one"]),
        ("relied_on.json", '"file": "', '"file": "../', ["features.0.file", "below the checkout"]),
        ("relied_on.json", '"sampling', '"(sampling', ["features.5.pattern", "regular expression"]),
        ("tools.json", '"uv": {', '"vu": {', ["its content", "a tool uv"]),
        ("tools.json", '"version": "', '"version": 1, "x": "', ["uv", "tools.json:"]),
    ],
)
def test_a_malformed_pin_is_refused_with_what_was_expected(root, name, old, new, told):
    change(root, name, old, new)
    text = refusal(root)
    assert all(part in text for part in [*told, "expected ", f"{root}/pins/{name}:"]), text


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("upstream.json", '"rev": "80', '"rev": "8x'),
        ("upstream.json", '"revision": "', '"revision": "x'),
        ("relied_on.json", '"recipes": ["terminus2"]', '"recipes": []'),
    ],
)
def test_the_line_of_a_malformed_pin_is_named(root, name, old, new):
    line = change(root, name, old, new)
    assert f"{root}/pins/{name}:{line}" in refusal(root)


def test_a_recipe_without_one_of_its_sources_is_refused(root):
    path = root / "pins" / "upstream.json"
    data = json.loads(path.read_text())
    del data["recipes"]["terminus2"]["harbor"]
    path.write_text(json.dumps(data))
    text = refusal(root)
    assert "expected recipes.terminus2 with miles, sglang, harbor (it has miles, sglang)" in text
    del data["recipes"]["terminus2"]
    path.write_text(json.dumps(data))
    assert "it has nothing" in refusal(root)


def test_a_key_that_is_there_twice_is_refused(root):
    change(root, "upstream.json", '"digest":', '"digest": "", "digest":')
    assert "twice" in refusal(root)


@pytest.mark.parametrize("name", ["upstream.json", "relied_on.json", "tools.json", "flake.json"])
@pytest.mark.parametrize(
    "content",
    [
        b"[" * 100_000,
        b'{"schema": ' + b"1" * 5000 + b"}",
        b"\xff",
        b"[]",
        b"",
        b'{"uv": {"version": "\\ud800"}}',
    ],
    ids=["deep", "long", "no UTF-8", "array", "empty", "half a character"],
)
def test_whatever_is_in_a_file_is_refused_and_named(root, name, content):
    (root / "pins" / name).write_bytes(content)
    text = refusal(root)
    assert f"{root}/pins/{name}" in text
    assert "expected " in text
    assert len(text) < 1000


def test_a_file_that_is_no_json_or_missing_is_refused(root):
    change(root, "tools.json", "{", "[")
    assert f"{root}/pins/tools.json:2" in refusal(root)
    (root / "pins" / "tools.json").unlink()
    assert "No such file" in refusal(root)


@pytest.mark.parametrize(
    ("condition", "text", "holds"),
    [
        ({"present": "a("}, "xa(y", True),
        ({"present": "a("}, "xa", False),
        ({"absent": "a("}, "xa", True),
        ({"absent": "a("}, "a(", False),
        ({"pattern": "^off"}, "on\noff", True),
        ({"pattern": "^off"}, "is off", False),
    ],
)
def test_a_feature_holds_when_its_condition_does(condition, text, holds):
    feature = Feature(name="n", source="miles", file="f", why="w", recipes=["camel"], **condition)
    assert feature.holds(text) is holds
    assert next(iter(condition.values())) in feature.expected


def test_values_are_found_in_the_text_by_their_keys():
    text = '{\n "a": {"b": "}{", "b2": 1},\n "c": [ {"a": 1},\n  {"a": [] , "b": null}]}'
    assert text[value_offset(text, ["a", "b2"])] == "1"
    assert line_of(text, ["c", 1, "b"]) == 4
    assert line_of(text, ["c", "missing"]) == 3
    assert value_offset("{}", ["x"]) == 0
