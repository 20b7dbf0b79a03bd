"""The audit of uv.lock: each kind of finding is found, advisories by pip-audit itself from a service on loopback."""

from __future__ import annotations

import importlib.util
import json
import re
import threading
import tomllib
from collections.abc import Callable, Iterator
from datetime import date
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from recipe.process import free_port

PROJECT = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("audit", PROJECT / "tools" / "audit.py")
audit = importlib.util.module_from_spec(spec)
spec.loader.exec_module(audit)

FILES = {"wheels": [{"url": "https://files/x.whl", "hash": f"sha256:{'0' * 64}"}]}
REGISTRY = {"registry": "https://registry/simple"}
ADVISORY = {
    "id": "TEST-1",
    "aliases": ["CVE-0-0"],
    "summary": "planted",
    "affected": [
        {
            "package": {"name": "bad", "ecosystem": "PyPI"},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "1.5"}]}],
        }
    ],
}


def lock_of(*packages: dict[str, Any]) -> dict[str, Any]:
    own = {"name": "ours", "version": "1", "source": {"editable": "."}}
    return {"package": [own, *packages]}


def package(name: str, **facts: Any) -> dict[str, Any]:
    return {"name": name, "version": "1.0", "source": REGISTRY, **FILES} | facts


def test_the_projects_own_lock_and_reasons_hold() -> None:
    lock, project, own = (
        tomllib.loads((PROJECT / name).read_text())
        for name in ("uv.lock", "pyproject.toml", "tools/audit.toml")
    )
    assert len(lock["package"]) > 100
    assert not list(audit.lock_findings(lock, project["project"]["name"]))
    assert not list(audit.direct_findings(PROJECT, project, lock, own["packages"]))
    assert not list(audit.accepted_findings(own.get("accepted", []), lock, date.min))


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"source": {"git": "https://host/x?rev=main#1a"}}, "comes from no registry"),
        ({"source": {"url": "https://host/x.whl"}}, "comes from no registry"),
        ({"source": {"path": "../x.whl"}}, "comes from no registry"),
        ({"source": {"editable": "."}}, "comes from no registry"),
        ({"source": {"registry": "https://another/simple"}}, "several registries"),
        ({"wheels": [{"url": "https://files/x.whl"}]}, "files without a SHA-256: https://files/x.whl"),
        ({"sdist": {"url": "https://files/x.tar.gz", "hash": "md5:00"}}, "files without a SHA-256"),
        ({"wheels": []}, "has no file"),
    ],
)
def test_a_package_that_is_not_sealed_or_not_of_the_registry_is_found(facts: Any, told: str) -> None:
    assert not list(audit.lock_findings(lock_of(package("fine")), "ours"))
    found = list(audit.lock_findings(lock_of(package("fine"), package("x", **facts)), "ours"))
    assert len(found) == 1
    assert told in found[0]


def direct(tmp_path: Path, dependency: str, *, group: bool = False, **entry: str) -> str:
    """What is found of one dependency whose entry is that, in a project that imports and runs a little."""
    for room, text in {"recipe": "import used.part", "tests": "find_spec('tested')"}.items():
        (tmp_path / room).mkdir(exist_ok=True)
        (tmp_path / room / "one.py").write_text(text)
    (tmp_path / "Makefile").write_text("lint:\n\t@sh -c 'checker --all'\n")
    groups = {"dev": [dependency, {"include-group": "audit"}]} if group else {}
    project = {"project": {"dependencies": [] if group else [dependency]}, "dependency-groups": groups}
    lock = lock_of(package("whole", dependencies=[{"name": "part"}]))
    reasons = {audit.canonicalize_name(re.split("[<>]", dependency)[0]): entry} if entry else {}
    return "\n".join(audit.direct_findings(tmp_path, project, lock, reasons))


def test_a_direct_dependency_needs_a_use_and_a_reason(tmp_path: Path) -> None:
    assert direct(tmp_path, "used>=1", reason="r") == ""
    assert "used has no reason" in direct(tmp_path, "used>=1")
    assert "used has no reason" in direct(tmp_path, "used>=1", reason=" ")
    assert "imports other" in direct(tmp_path, "other>=1", reason="r")
    assert direct(tmp_path, "Other_Name>=1", reason="r", module="used") == ""
    assert direct(tmp_path, "tested", group=True, reason="r") == ""
    assert "nothing in recipe imports tested" in direct(tmp_path, "tested", reason="r")
    assert direct(tmp_path, "wheel", group=True, reason="r", program="checker") == ""
    assert "run no check" in direct(tmp_path, "wheel", group=True, reason="r", program="check")
    assert direct(tmp_path, "part<2", reason="r", bounds="whole") == ""
    assert "whole no longer depends on it" in direct(tmp_path, "another", reason="r", bounds="whole")
    stale = audit.direct_findings(tmp_path, {"project": {"dependencies": []}}, lock_of(), {"gone": {}})
    assert "which pyproject.toml does not ask for" in "\n".join(stale)


def test_what_was_accepted_has_an_end_and_a_package() -> None:
    entry = {"id": "TEST-1", "package": "bad", "reason": "r", "until": date(2030, 1, 1)}
    lock = lock_of(package("bad"))

    def found(**changes: Any) -> list[str]:
        return list(audit.accepted_findings([entry | changes], lock, date(2030, 1, 1)))

    assert found() == []
    assert "looked at again by 2029-12-31" in found(until=date(2029, 12, 31))[0]
    assert "of a package that uv.lock has not" in found(package="gone")[0]
    assert "needs an id" in found(reason="")[0]
    assert "a day without quotes" in found(until="2030-01-01")[0]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One that asks for two packages; the audit looks at it."""
    (tmp_path / "tools").mkdir()
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "one.py").write_text("import bad\nimport fine\n")
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "ours"\ndependencies = ["bad", "fine"]\n')
    (tmp_path / "tools" / "audit.toml").write_text(
        "[packages]\nbad = { reason = 'r' }\nfine = { reason = 'r' }\n"
    )
    text = '[[package]]\nname = "ours"\nversion = "1"\nsource = { editable = "." }\n'
    for name in ("bad", "fine"):
        text += f'[[package]]\nname = "{name}"\nversion = "1.0"\nsource = {{ registry = "r" }}\n'
        text += f'wheels = [{{ url = "u", hash = "sha256:{"0" * 64}" }}]\n'
    (tmp_path / "uv.lock").write_text(text)
    monkeypatch.setattr(audit, "ROOT", tmp_path)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return tmp_path


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """Starts a service that speaks as OSV's, with what it says of each package (None: it fails); its URL."""
    servers = []

    def start(**says: Any) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                name = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["package"]["name"]
                answer = says.get(name, {})
                self.send_response(500 if answer is None else 200)
                self.end_headers()
                self.wfile.write(json.dumps(answer).encode())

            def log_message(self, *_: object) -> None: ...

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        audit.main(words)
    return ended.value.code


PLANTED = {"vulns": [ADVISORY]}


def test_a_planted_advisory_is_found_and_a_clean_lock_is_said_to_be_asked_about(project, serve, capsys):
    assert run("--service", serve(jinja2=PLANTED, bad=PLANTED)) == 1
    told = capsys.readouterr().out
    assert "found: bad 1.0 has an advisory: " in told
    assert all(
        word in told for word in ("TEST-1", "CVE-0-0", "mended in 1.5; run uv lock --upgrade-package bad")
    )
    assert "fine 1.0" not in told
    assert run("--service", serve(jinja2=PLANTED), "--require") == 0
    told = capsys.readouterr().out
    assert "was asked about all 2: 0 advisories, 0 accepted" in told
    assert "found" not in told
    assert "NO advisory" not in told


def test_an_accepted_advisory_is_one_of_its_package(project, serve, capsys):
    entry = '[[accepted]]\nid = "CVE-0-0"\npackage = "bad"\nreason = "r"\nuntil = 9999-01-01\n'
    with (project / "tools" / "audit.toml").open("a") as own:
        own.write(entry)
    service = serve(jinja2=PLANTED, bad=PLANTED)
    assert run("--service", service) == 0
    assert "1 advisories, 1 accepted" in capsys.readouterr().out
    bad = {"package": "bad", "version": "1.0", "id": "TEST-1", "aliases": ["CVE-0-0"], "fix_versions": []}
    for name, of, left in (
        ("TEST-1", "bad", 0),
        ("CVE-0-0", "bad", 0),
        ("CVE-0-0", "fine", 1),
        ("CVE-1", "bad", 1),
    ):
        assert len(list(audit.advisory_findings([bad], [{"id": name, "package": of}]))) == left


def test_a_service_that_is_not_reached_is_said_and_fails_only_where_it_is_required(project, serve, capsys):
    closed = f"http://127.0.0.1:{free_port()}"
    # Answers everything with nothing, as one without advisories does; fails; is no service at all.
    for service in (closed, serve(), serve(jinja2=None), serve(jinja2=["x"]), "no-address"):
        assert run("--service", service) == 0
        told = capsys.readouterr().out
        assert f"NO advisory was asked for: {service} was not reached: " in told
        assert "found:" not in told
        assert run("--service", service, "--require") == 1
        assert f"found: {service} was not reached: " in capsys.readouterr().out


def test_a_lock_that_is_found_bad_fails_without_the_service_too(project, capsys):
    lock = project / "uv.lock"
    lock.write_text(lock.read_text().replace('registry = "r"', 'git = "https://host/bad"', 1))
    assert run("--service", f"http://127.0.0.1:{free_port()}") == 1
    assert "found: bad 1.0 comes from no registry" in capsys.readouterr().out


def test_a_service_that_breaks_off_is_a_failure_and_hides_nothing_of_the_lock(project, serve, capsys):
    (project / "recipe" / "one.py").write_text("import fine\n")
    assert "pip-audit failed" in str(run("--service", serve(jinja2=PLANTED, fine=None)))
    assert "found: bad is not used" in capsys.readouterr().out
