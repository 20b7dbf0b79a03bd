#!/bin/bash
# The owner may read and execute the script, and its text is as it was.
reward=0
text=$'#!/bin/sh\necho ready'
mode=$(stat -c %a /app/run.sh)
[[ $mode == [57]?? ]] && [[ -f /app/run.sh && $(head -c 1000 /app/run.sh) == "$text" ]] && reward=1
echo "$reward" > /logs/verifier/reward.txt
