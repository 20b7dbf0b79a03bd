#!/bin/bash
# The number alone, without the file's name that `wc -l FILE` prints.
reward=0
[[ -f /app/count.txt && $(head -c 1000 /app/count.txt) == "7" ]] && reward=1
echo "$reward" > /logs/verifier/reward.txt
