#!/bin/bash
set -e
sed -i s/debug/info/ /app/app.conf
