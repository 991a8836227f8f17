#!/bin/sh
# Runs every stage's program under the four tools of compute-sanitizer, on a GPU:
#
#     common/tests/sanitize.sh build/gpu/bin [STAGE ...]
#
# The shapes are small and awkward: odd widths, rows that start off their alignment, one row to a warp, to a block and to a
# cluster of blocks.
# Exit code 1 where a tool found something or a result was wrong. docs/verified/ keeps what was printed.
set -u
[ $# -ge 1 ] || {
  echo "usage: $0 FOLDER_OF_PROGRAMS [STAGE ...]" >&2
  exit 2
}
PATH="$PATH:/usr/local/cuda/bin"
folder=$1
shift
if [ $# -eq 0 ]; then
  for main in "$(dirname "$0")"/../../[0-9][0-9]_*/main.cu; do
    set -- "$@" "$(basename "$(dirname "$main")")"
  done
fi
code=0
log=$(mktemp)
for stage; do
  program="$folder/$stage"
  for tool in memcheck racecheck initcheck synccheck; do
    echo "== $stage $tool"
    compute-sanitizer --tool "$tool" --error-exitcode 9 "$program" --check-only --shapes 3x127,5x1000,2x4097,2x20000 \
      --dtype all --input normal >"$log" 2>&1 || {
      code=1
      cat "$log"
    }
    grep -E '^[0-9]+ checks?:|SUMMARY' "$log"
  done
done
rm -f "$log"
exit "$code"
