"""What a scripted policy plays in each smoke task: the trajectories that a tiny model is warmed up on.

Each command is one call of shell_exec in a fresh trial. The tests play every one of them in real trials.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Behaviours:
    """`right` gives reward 1 and each of `wrong` reward 0; `check`, after any of them, shows what came of it.

    A check prints the same every time: no dates, sizes or owners.
    """

    right: str
    check: str
    wrong: tuple[str, str]


SMOKE_BEHAVIOURS = {
    "append-line": Behaviours(
        right="echo red >> /app/colors.txt",
        check="cat /app/colors.txt",
        wrong=("echo red > /app/colors.txt", "echo blue >> /app/colors.txt"),
    ),
    "count-lines": Behaviours(
        right="wc -l < /app/data.csv > /app/count.txt",
        check="cat /app/count.txt",
        wrong=("wc -w < /app/data.csv > /app/count.txt", "wc -l /app/data.csv > /app/count.txt"),
    ),
    "delete-stale-log": Behaviours(
        right="rm /app/old.log",
        check="ls /app",
        wrong=("rm /app/new.log", "rm /app/*.log"),
    ),
    "make-executable": Behaviours(
        right="chmod +x /app/run.sh",
        check="stat -c %A /app/run.sh",
        wrong=("chmod -x /app/run.sh", "chmod +r /app/run.sh"),
    ),
    "rename-report": Behaviours(
        right="mv /app/draft.txt /app/report.txt",
        check="ls /app",
        wrong=("cp /app/draft.txt /app/report.txt", "mv /app/report.txt /app/draft.txt"),
    ),
    "replace-word": Behaviours(
        right="sed -i s/debug/info/ /app/app.conf",
        check="cat /app/app.conf",
        wrong=("sed s/debug/info/ /app/app.conf", "sed -i s/info/debug/ /app/app.conf"),
    ),
    "sort-names": Behaviours(
        right="sort /app/names.txt > /app/sorted.txt",
        check="cat /app/sorted.txt",
        wrong=("sort -r /app/names.txt > /app/sorted.txt", "cat /app/names.txt > /app/sorted.txt"),
    ),
    "write-greeting": Behaviours(
        right="echo hello > /app/greeting.txt",
        check="cat /app/greeting.txt",
        wrong=("touch /app/greeting.txt", "echo hello > /app/hello.txt"),
    ),
}
