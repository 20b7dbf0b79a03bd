"""The build's steps for real: a local repository is the upstream, another the checkout in the image."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from recipe.container import image
from recipe.pins import load_pins

CHECKOUT, CHECK = image.CONTEXT / "checkout.sh", image.CONTEXT / "check.py"


def put(upstream, rev: str, checkout) -> subprocess.CompletedProcess[str]:
    command = ["sh", str(CHECKOUT), upstream.folder.as_uri(), rev, str(checkout.folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_commit_that_no_branch_names_is_checked_out(upstream, checkout):
    wanted = upstream.commit("pinned")
    upstream.commit("newer")
    done = put(upstream, wanted, checkout)
    assert done.returncode == 0, done.stderr
    assert checkout.git("rev-parse", "HEAD") == wanted
    assert (checkout.folder / "python/sglang/__init__.py").read_text() == "pinned"


def test_what_is_compiled_in_the_image_stays(upstream, checkout):
    kernel = checkout.folder / "python" / "sglang" / "kernel.so"
    kernel.write_bytes(b"compiled")
    assert put(upstream, upstream.commit("pinned"), checkout).returncode == 0
    assert kernel.read_bytes() == b"compiled"


def test_a_commit_that_upstream_does_not_have_fails_the_build(upstream, checkout):
    upstream.commit("another")
    before = checkout.git("rev-parse", "HEAD")
    done = put(upstream, "ab" * 20, checkout)
    assert done.returncode == 1
    assert "ab" * 20 in done.stderr
    assert str(checkout.folder) in done.stderr
    assert checkout.git("rev-parse", "HEAD") == before


@pytest.mark.parametrize("name", ["main", "v1"])
def test_a_name_that_can_move_fails_the_build_although_it_can_be_fetched(upstream, checkout, name):
    tip = upstream.commit("pinned")
    upstream.git("tag", "--annotate", "--message=one", "v1")
    done = put(upstream, name, checkout)
    assert done.returncode == 1
    assert "not at the commit" in done.stderr
    assert tip in done.stderr


def test_a_tag_object_is_not_taken_for_its_commit(upstream, checkout):
    upstream.commit("pinned")
    upstream.git("tag", "--annotate", "--message=one", "v1")
    done = put(upstream, upstream.git("rev-parse", "v1"), checkout)
    assert done.returncode == 1
    assert "not at the commit" in done.stderr


def test_local_changes_that_are_in_the_way_fail_the_build(upstream, checkout):
    (checkout.folder / "python/sglang/__init__.py").write_text("patched in the image")
    done = put(upstream, upstream.commit("pinned"), checkout)
    assert done.returncode == 1
    assert "could not be checked out" in done.stderr


@pytest.fixture
def node(tmp_path, upstream, checkout):
    """What the build wrote into an image whose checkouts lie in a test's folder, and how a node checks it."""
    rev = upstream.commit("pinned")
    assert put(upstream, rev, checkout).returncode == 0
    pins = load_pins()
    source = pins.recipes["camel"].sources["miles"].model_copy(update={"rev": rev})
    recipe = pins.recipes["camel"].model_copy(update={"root": {"miles": source, "sglang": source}})
    paths = {"miles": str(checkout.folder), "sglang": str(checkout.folder)}
    pins = pins.model_copy(
        update={"recipes": {"camel": recipe}, "image": pins.image.model_copy(update={"paths": paths})}
    )
    record = tmp_path / "pins.json"
    record.write_text(image.record(pins, "camel") + "\n")

    def check(tag: str | None = None, pythonpath: Path = checkout.folder / "python", path="/usr/bin:/bin"):
        command = [sys.executable, str(CHECK), tag or image.tag(pins, "camel"), str(record)]
        environment = {"PATH": str(path), "PYTHONPATH": str(pythonpath)}
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    check.record, check.rev = record, rev
    return check


def test_a_node_at_its_pins_passes(node):
    done = node()
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("ok  ") == 3


def test_an_image_of_other_pins_is_refused(node):
    done = node(tag="pins-000000000000")
    assert done.returncode == 1
    assert "other pins" in done.stderr


def test_a_record_that_was_edited_is_refused(node):
    node.record.write_text(node.record.read_text().replace(node.rev, "ab" * 20))
    assert "other pins" in node().stderr


def test_an_image_without_a_record_is_refused(node):
    node.record.unlink()
    done = node()
    assert done.returncode == 1
    assert "not built by us" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "content",
    [
        b"\xff",
        b"[" * 100_000,
        b"1",
        b"{}",
        b'{"sources": [1], "imports": {}}',
        b'{"sources": {"a": 1}, "imports": {}}',
    ],
    ids=["no text", "deep", "number", "empty", "array", "no source"],
)
def test_a_record_of_another_shape_is_refused_without_a_traceback(node, content):
    node.record.write_bytes(content)
    done = node(tag=f"pins-{hashlib.sha256(content).hexdigest()[:12]}")
    assert done.returncode == 1
    assert "expected" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", [[], ["pins-0", "/nowhere", "more"]])
def test_other_arguments_than_a_tag_and_a_record_are_refused(words):
    done = subprocess.run([sys.executable, str(CHECK), *words], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "expected TAG" in done.stderr


def test_without_git_the_check_says_so(node, tmp_path):
    done = node(path=tmp_path)
    assert done.returncode == 1
    assert "git can't be run" in done.stderr


def test_a_checkout_at_another_commit_is_refused(node, checkout):
    moved = checkout.commit("moved")
    done = node()
    assert done.returncode == 1
    assert node.rev in done.stderr
    assert moved in done.stderr


def test_a_checkout_with_local_changes_is_refused(node, checkout):
    (checkout.folder / "python/sglang/__init__.py").write_text("patched")
    done = node()
    assert done.returncode == 1
    assert "local changes" in done.stderr


def test_a_package_from_elsewhere_is_refused(node, tmp_path):
    other = tmp_path / "site-packages"
    (other / "sglang").mkdir(parents=True)
    (other / "sglang" / "__init__.py").touch()
    done = node(pythonpath=other)
    assert done.returncode == 1
    assert "imported from elsewhere" in done.stderr
    assert str(other / "sglang") in done.stderr


def test_a_checkout_that_is_none_is_refused_without_a_traceback(node, checkout):
    (checkout.folder / ".git").rename(checkout.folder / "no-git")
    done = node()
    assert done.returncode == 1
    assert "git can't read a checkout" in done.stderr
    assert json.loads(node.record.read_text())["recipe"] == "camel"
