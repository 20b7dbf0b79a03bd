#!/bin/bash
# The stale log is gone, and the other one is as it was.
reward=0
kept="2024-06-11 service started"
[[ ! -e /app/old.log && ! -L /app/old.log ]] && [[ -f /app/new.log && $(head -c 1000 /app/new.log) == "$kept" ]] && reward=1
echo "$reward" > /logs/verifier/reward.txt
