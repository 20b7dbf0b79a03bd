#!/bin/bash
set -e
wc -l < /app/data.csv > /app/count.txt
