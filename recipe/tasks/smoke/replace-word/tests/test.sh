#!/bin/bash
# The word is replaced in the file itself, and the other lines are as they were.
reward=0
text=$'port=8080\nlevel=info\nworkers=2'
[[ -f /app/app.conf && $(head -c 1000 /app/app.conf) == "$text" ]] && reward=1
echo "$reward" > /logs/verifier/reward.txt
