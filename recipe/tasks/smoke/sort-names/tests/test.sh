#!/bin/bash
# All names in order, in the new file.
reward=0
text=$'alice\nbob\ncarol\neve\nmallory\ntrent'
[[ -f /app/sorted.txt && $(head -c 1000 /app/sorted.txt) == "$text" ]] && reward=1
echo "$reward" > /logs/verifier/reward.txt
