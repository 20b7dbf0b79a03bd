"""What a policy tries in its sandbox fails, whoever runs the sandbox; and the attempts would notice success."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from escape_attempts import ATTEMPTS, LEFT_BEHIND, OUTSIDE, UNFILTERED
from proofs import as_root, left_in

from recipe.harbor import bwrap, seccomp
from recipe.harbor.bwrap import NOBODY, find_bwrap
from recipe.harbor.local_env import LocalEnvironment
from recipe.harbor.sandbox import EXECD, Completed, Limits, Sandbox
from recipe.harbor.trials import TrialReply, run_trial

LIMITS = Limits(memory_mb=256, disk_mb=8, processes=64)
FILES = 500  # of the disk, so that it fills at once
SECONDS = 30
DROPPED = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--"]


@pytest.fixture(autouse=True)
def _small_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bwrap, "DISK_FILES", FILES)


@pytest.fixture(scope="module")
def prey() -> Iterator[Mapping[str, str]]:
    """What is to be had on this machine: open to everybody, so that only the sandbox can be in the way."""
    folder = Path(tempfile.mkdtemp(prefix="inkling-grpo-prey-"))
    folder.chmod(0o755)
    (folder / "secret").write_text("secret\n")
    (folder / "secret").chmod(0o644)
    token, drop = secrets.token_hex(8), DROPPED if os.geteuid() == 0 else []
    victim = subprocess.Popen([*drop, "sleep", "1000"], env={"PATH": os.environ["PATH"], "TOKEN": token})
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        abstract.bind(f"\0{token}")
        abstract.listen()
        yield {
            "secret": str(folder / "secret"),
            "other": str(folder),
            "port": str(listener.getsockname()[1]),
            "abstract": token,
            "token": token,
            "pid": str(victim.pid),
        }
    victim.kill()
    victim.wait()
    shutil.rmtree(folder)


def tried(root: Path, script: str, prey: Mapping[str, str], *, survives: bool = True) -> Completed:
    """`script` in a sandbox of its own, which must still be of use afterwards."""

    async def main() -> Completed:
        box = Sandbox(root=root, limits=LIMITS)
        await box.start()
        try:
            done = await box.run(["/bin/bash", "-c", filled(script, prey)], seconds=SECONDS)
            if survives:
                await box.killall()
                assert (await box.run(["/bin/echo", "alive"], seconds=SECONDS)).stdout == b"alive\n"
            return done
        finally:
            await box.stop()

    return asyncio.run(main())


def filled(script: str, prey: Mapping[str, str]) -> str:
    for name, value in prey.items():
        script = script.replace(f"@{name}@", value)
    return script


@pytest.mark.parametrize("name", ATTEMPTS)
def test_an_attempt_is_refused(name: str, prey: Mapping[str, str], scratch_root: Path) -> None:
    done = tried(scratch_root, ATTEMPTS[name].script, prey)
    assert done.code != 0, done


@as_root
@pytest.mark.parametrize("name", ATTEMPTS)
def test_an_attempt_is_refused_when_an_ordinary_user_runs_the_sandbox(
    name: str, prey: Mapping[str, str]
) -> None:
    def body() -> None:
        root = Path(tempfile.mkdtemp(prefix="inkling-grpo-test-"))
        done = tried(root, ATTEMPTS[name].script, prey)
        assert done.code != 0, done
        assert not left_in(root)
        root.rmdir()

    as_nobody(body)


@pytest.mark.parametrize("name", [name for name, attempt in ATTEMPTS.items() if attempt.proof is not None])
def test_an_attempt_succeeds_where_nothing_is_in_its_way(
    name: str, prey: Mapping[str, str], scratch_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = ATTEMPTS[name]
    assert attempt.proof is not None
    if attempt.proof == OUTSIDE:
        drop = DROPPED if os.geteuid() == 0 else []
        command = [
            *drop,
            "unshare",
            "--user",
            "--map-root-user",
            "--mount",
            "bash",
            "-c",
            filled(attempt.script, prey),
        ]
        done = subprocess.run(command, cwd="/tmp", capture_output=True, check=False, timeout=SECONDS)
        assert done.returncode == 0, done
        return
    if attempt.proof == UNFILTERED:
        unfiltered = seccomp.program("another processor")
        monkeypatch.setattr(seccomp, "program", lambda: unfiltered)
    script = attempt.script if attempt.proof == UNFILTERED else attempt.proof
    done = tried(scratch_root, script, prey, survives=attempt.proof != UNFILTERED)
    assert done.code == 0, done


# A verifier in Python that needs a megabyte, as one with its own library does.
VERDICT = (
    "head -c 1000000 /dev/zero > /tmp/room && python3 -c 'print(0)' > /logs/verifier/reward.txt; sleep 0.1"
)


@pytest.mark.parametrize("name", LEFT_BEHIND)
def test_nothing_that_an_agent_leaves_behind_spares_it_the_verdict(name: str, make_task, request_for) -> None:
    replied = left_behind(name, make_task, request_for)
    assert (replied.exit_status, replied.reward) == ("Submitted", 0.0), replied.error


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("a process that writes the reward", ("Submitted", 1.0)),
        ("folders that nobody may enter", ("AgentError", None)),
        ("a full disk", ("AgentError", None)),
        ("a disk with too little room", ("AgentError", None)),
    ],
)
def test_without_clearing_for_the_verifier_it_would(
    name: str, outcome: tuple[str, float | None], make_task, request_for, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*_: object, **__: object) -> None:
        pass

    monkeypatch.setattr(LocalEnvironment, "clear_for_verifier", nothing)
    replied = left_behind(name, make_task, request_for)
    assert (replied.exit_status, replied.reward) == outcome, replied.error


def test_a_task_that_has_python_import_what_is_in_its_users_folder_trusts_it(make_task, request_for) -> None:
    asked = "FROM scratch\nWORKDIR /app\nENV PYTHONNOUSERSITE=\n"
    replied = left_behind("code that Python imports at its start", make_task, request_for, dockerfile=asked)
    assert (replied.exit_status, replied.reward) == ("Submitted", 1.0), replied.error


def left_behind(name: str, make_task, request_for, **of_task: str) -> TrialReply:
    request = request_for(make_task(test=VERDICT, **of_task), commands=[LEFT_BEHIND[name]])
    small = {**request.environment, "override_storage_mb": 8, "override_memory_mb": 96}
    return asyncio.run(run_trial(replace(request, environment=small)))


def as_nobody(body: Callable[[], None]) -> None:
    """Runs it in a child process that is an ordinary user; fails as it does."""
    needed = (find_bwrap(), EXECD)
    if not all(folder.stat().st_mode & 0o001 for path in needed for folder in path.parents):
        pytest.skip("this checkout, or its environment, is closed to other users")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            body()
        except BaseException:  # noqa: BLE001 (it is the test's outcome)
            os.write(writer, traceback.format_exc()[-60_000:].encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as report:
        said = report.read()
    os.waitpid(child, 0)
    if said:
        pytest.fail(said)
