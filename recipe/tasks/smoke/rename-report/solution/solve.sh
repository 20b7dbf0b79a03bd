#!/bin/bash
set -e
mv /app/draft.txt /app/report.txt
