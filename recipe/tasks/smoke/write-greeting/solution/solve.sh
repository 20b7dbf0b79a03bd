#!/bin/bash
set -e
echo hello > /app/greeting.txt
