#!/bin/bash
# The old lines are still there, with the new one after them.
reward=0
text=$'blue\ngreen\nred'
[[ -f /app/colors.txt && $(head -c 1000 /app/colors.txt) == "$text" ]] && reward=1
echo "$reward" > /logs/verifier/reward.txt
