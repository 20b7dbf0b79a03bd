#!/bin/bash
# The text is under the new name, and the old name is gone: a copy is no renaming.
reward=0
text="quarterly figures"
[[ ! -e /app/draft.txt && ! -L /app/draft.txt ]] && [[ -f /app/report.txt && $(head -c 1000 /app/report.txt) == "$text" ]] && reward=1
echo "$reward" > /logs/verifier/reward.txt
