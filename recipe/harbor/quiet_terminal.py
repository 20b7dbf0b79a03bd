"""A terminal that is looked at once it is quiet, whatever time was asked for: what it shows depends on no clock.

Quiet: its shell sleeps, alone in the foreground, and the screen stays as it is. What a policy leaves running in the
background may still write at any time, and a program in the foreground is waited for no longer than a limit.
"""

from __future__ import annotations

from typing import override

from recipe.harbor.terminus2_library import TmuxSession

# Commands of the smoke tasks end within milliseconds; on a machine with forty times the work it can do, in 8 s. A
# program that waits for input costs all of it; what is written later than this is what two runs may show differently.
LIMIT_SECONDS = 20
# Equal looks in a row, each some 20 ms after the one before. Each asks tmux anew, which takes keys and output first.
LOOKS = 4
# Behind its name, a process' line in /proc has its state, its parent, its group, and sixth the terminal's foreground
# group. A command substitution runs in the shell's own group: the shell is alone there only without one.
WAIT = r"""
same=0 seen=
while ((same < looks && SECONDS < limit)); do
  now=$(tmux display-message -p -t "$session" '#{pane_pid} #{history_size}' \; capture-pane -p -t "$session") || exit
  alone=$(cat /proc/[0-9]*/stat 2> /dev/null | awk '
    { sub(/.*\) /, "") } $3 == shell { count++; asleep = $1 == "S" && $6 == shell } END { print count == 1 && asleep }
  ' shell="${now%% *}")
  if [[ $alone == 1 && $now == "$seen" ]]; then ((same += 1)); else same=0; fi
  seen=$now
  sleep 0.02
done
"""


class QuietTerminal(TmuxSession):
    """Harbor's, that waits after each key press until it is quiet, for LIMIT_SECONDS or what was asked for."""

    @override
    async def send_keys(
        self,
        keys: str | list[str],
        block: bool = False,
        min_timeout_sec: float = 0.0,
        max_timeout_sec: float = 180.0,
    ) -> None:
        await super().send_keys(keys, block, 0.0, max_timeout_sec)
        limit = max(LIMIT_SECONDS, min_timeout_sec)  # in this order: NaN is no limit
        known = {"session": self._session_name, "looks": str(LOOKS), "limit": str(int(limit))}
        await self.environment.exec(WAIT, env=known, user=self._user)
