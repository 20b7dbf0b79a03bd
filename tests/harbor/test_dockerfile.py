"""Which Dockerfiles the local sandbox follows, and that it refuses the others by their line."""

from __future__ import annotations

from pathlib import Path

import pytest

from recipe.harbor.dockerfile import Copy, DockerfileError, Run, read_dockerfile


def written(folder: Path, text: str) -> Path:
    (folder / "data").mkdir(exist_ok=True)
    for name in ("a.txt", "b.txt", "data/c.txt"):
        (folder / name).write_text(name)
    (folder / "Dockerfile").write_text(text)
    return folder / "Dockerfile"


def test_the_supported_instructions_in_their_forms(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "\n".join(
            [
                "# syntax=docker/dockerfile:1",
                "FROM debian:12 AS base",
                "ENV A=1 B='x y'",
                "ENV PATH=/app/bin:$PATH OLD ${A}",
                "workdir /srv/work",
                "WORKDIR sub",
                "COPY --chmod=0755 a.txt ./renamed",
                "COPY a.txt b.txt /app/",
                'COPY ["data", "/data"]',
                "COPY *.txt .",
                "RUN one \\",
                "  # a comment in between",
                "  && two",
                'RUN ["three", "a b"]',
            ]
        ).replace(" OLD ${A}", "\nENV OLD  value of ${A}"),
    )
    build = read_dockerfile(path)
    assert build.workdir == "/srv/work/sub"
    assert build.environment["B"] == "x y"
    assert build.environment["PATH"].startswith("/app/bin:/usr/local/sbin:")
    assert build.environment["OLD"] == "value of 1"
    renamed, two, folder, pattern, one, three = build.steps
    assert renamed == Copy(8, "/srv/work/sub", {"renamed": tmp_path / "a.txt"}, 0o755)
    assert two == Copy(9, "/app", {"a.txt": tmp_path / "a.txt", "b.txt": tmp_path / "b.txt"}, None)
    assert folder == Copy(10, "/data", {"c.txt": tmp_path / "data/c.txt"}, None)
    assert pattern == Copy(
        11, "/srv/work/sub", {"a.txt": tmp_path / "a.txt", "b.txt": tmp_path / "b.txt"}, None
    )
    assert isinstance(one, Run)
    assert isinstance(three, Run)
    assert one.line == 12
    assert one.command.split() == ["one", "&&", "two"]
    assert one.folder == "/srv/work/sub"
    assert three.command == "three 'a b'"
    assert set(build.folders) == {"/srv/work", "/srv/work/sub", "/app", "/data"}


def test_a_file_copied_onto_a_known_folder_goes_into_it(tmp_path: Path) -> None:
    build = read_dockerfile(written(tmp_path, "FROM x\nWORKDIR /work\nCOPY a.txt /work\nCOPY a.txt /app\n"))
    assert [step.folder for step in build.steps if isinstance(step, Copy)] == ["/work", "/app"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("# Escape = `", "# is not among"),
        ("ADD a.txt /app/", "ADD is not among"),
        ("USER agent", "USER is not among"),
        ("ARG X=1", "ARG is not among"),
        ("CMD true", "CMD is not among"),
        ("FROM second", "exactly one FROM"),
        ("RUN --mount=type=cache,target=/c true", "flags of RUN"),
        ("RUN cat <<EOF", "here-documents"),
        ("COPY --from=base /a /b", "--from=base"),
        ("COPY --chown=agent a.txt /app/", "--chown=agent"),
        ("COPY missing /app/", "missing is not in"),
        ("COPY ../secret /app/", "leaves the build context"),
        ("COPY a.txt", "a source and a destination"),
        ("COPY a.txt /usr/local/bin/a", "read-only"),
        ("COPY a.txt /etc/", "read-only"),
        ("COPY a.txt /a.txt", "read-only"),
        ("COPY a.txt /app/../etc/", "'..'"),
        ("WORKDIR /usr/src", "read-only"),
        ("WORKDIR $UNKNOWN", "no earlier ENV sets 'UNKNOWN'"),
        ("ENV A=${B:-c}", "Invalid placeholder"),
        ("ENV A=1 B", "not NAME=VALUE"),
        ("ENV A='open", "No closing quotation"),
    ],
)
def test_any_other_line_is_refused_by_its_number(tmp_path: Path, line: str, reason: str) -> None:
    path = written(tmp_path, f"FROM x\n\n{line}\n")
    with pytest.raises(DockerfileError) as refused:
        read_dockerfile(path)
    assert reason in str(refused.value)
    assert refused.value.facts["where"] == f"{path}, line 3"
    assert refused.value.facts["found"] == line


def test_a_file_without_from_and_a_dockerignore_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DockerfileError, match="exactly one FROM"):
        read_dockerfile(written(tmp_path, "WORKDIR /app\n"))
    (tmp_path / ".dockerignore").write_text("a.txt\n")
    with pytest.raises(DockerfileError, match="dockerignore"):
        read_dockerfile(written(tmp_path, "FROM x\n"))
