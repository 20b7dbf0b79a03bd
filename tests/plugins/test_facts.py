"""What a node tells of its sources, network and shared folders, each with what it tells when that is not there."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from recipe.pins import Feature
from recipe.plugins import facts


def test_a_checkout_tells_its_commit_and_what_lies_in_one_tells_none(tmp_path):
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout
    (tmp_path / "inner").mkdir()
    assert facts._commit(str(tmp_path)) == head.strip()
    assert facts._commit(str(tmp_path / "inner")) is None


def test_changed_files_of_a_checkout_are_counted_and_built_ones_are_not(tmp_path):
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x"]
    subprocess.run([*git, "init", "-q"], check=True)
    (tmp_path / "a.py").write_text("1")
    (tmp_path / "b.py").write_text("1")
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "x"], check=True)
    (tmp_path / "built.so").write_text("1")
    index = (tmp_path / ".git" / "index").stat().st_mtime_ns
    assert facts._changed(str(tmp_path)) == 0
    (tmp_path / "a.py").write_text("2")
    (tmp_path / "b.py").unlink()
    assert facts._changed(str(tmp_path)) == 2
    assert (tmp_path / ".git" / "index").stat().st_mtime_ns == index
    assert facts._changed(str(tmp_path / "nothing")) is None


@pytest.mark.parametrize(
    ("text", "condition", "holds"),
    [
        ("a\ndef run(self)", {"pattern": "^def run"}, True),
        ("a\n def run(self)", {"pattern": "^def run"}, False),
        ("timeout=30", {"absent": "timeout=30"}, False),
        ("timeout=60", {"absent": "timeout=30"}, True),
        ("timeout=60", {"present": "timeout=30"}, False),
        (None, {"absent": "timeout=30"}, False),
    ],
)
def test_a_condition_on_a_source_holds_or_not_as_it_does_for_the_pins(tmp_path, text, condition, holds):
    file = {"name": "n", "source": "miles", "file": "file.py", "why": "w", "recipes": ["camel"]}
    feature = Feature(**file, **condition)
    if text is not None:
        (tmp_path / "file.py").write_text(text)
        assert feature.holds(text) is holds
    assert facts._holds(feature.model_dump(), {"miles": str(tmp_path)}) is holds


def test_a_package_is_found_where_it_would_be_imported_from(tmp_path, monkeypatch):
    package = tmp_path / "sglang_of_this_test"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError")
    assert facts._imported("sglang_of_this_test") is None
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert facts._imported("sglang_of_this_test") == str(package)


def test_the_address_towards_the_head_belongs_to_an_interface():
    with socket.create_server(("127.0.0.1", 0)) as head:
        port = head.getsockname()[1]
        assert facts._route("127.0.0.1", port) == {"address": "127.0.0.1"}
    assert "refused" in facts._route("127.0.0.1", port)["error"]
    assert facts.interfaces()["lo"] == "127.0.0.1"


def test_a_shared_folder_is_read_and_written_by_every_node(tmp_path, monkeypatch):
    monkeypatch.setattr(
        facts, "get_runtime_context", lambda: type("Node", (), {"get_node_id": lambda self: "me"})()
    )
    (tmp_path / facts.NONCE).write_text("n")
    assert facts.share(str(tmp_path), "n") is None
    assert (tmp_path / "me").read_text() == "n"
    assert facts.share(str(tmp_path), "other") == "another text than the head wrote"
    assert "No such file" in facts.share(str(tmp_path / "elsewhere"), "n")
    assert facts.share(None, "n") == "the head can't write there"


def test_a_file_that_is_not_there_has_no_digest_and_a_damaged_index_no_size(tmp_path):
    index = tmp_path / "index.json"
    assert (facts._digest(index), facts._model_bytes(index)) == (None, None)
    index.write_text('{"metadata": {}}')
    assert facts._model_bytes(index) is None
    index.write_text('{"metadata": {"total_size": 7}}')
    assert facts._model_bytes(index) == 7
    assert len(facts._digest(index)) == 12


def test_space_is_told_of_what_exists_above_a_folder_to_be():
    assert facts._space(Path("/proc/none/below")) == facts._space(Path("/proc"))
    assert facts._space(Path("/tmp"))["free"] > 0
