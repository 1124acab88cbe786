#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# run.sh READ-CASES [GENERATOR]: what the readers make of odd weight files.
set -eu
generator=${WEIGHTFS_CASE_GENERATOR:-${2:-}}
[ -n "$generator" ] || { echo "SKIP: no generator of cases"; exit 77; }
exec python3 "$(dirname "$0")/run_reader.py" "$1" "$generator"
