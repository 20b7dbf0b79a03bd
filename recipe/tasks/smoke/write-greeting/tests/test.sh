#!/bin/bash
# The file holds the word and nothing else; a final newline is optional.
reward=0
[[ -f /app/greeting.txt && $(head -c 1000 /app/greeting.txt) == "hello" ]] && reward=1
echo "$reward" > /logs/verifier/reward.txt
