#!/bin/bash
set -e
echo red >> /app/colors.txt
