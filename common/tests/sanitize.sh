#!/bin/sh
# Runs every stage's program under the four tools of compute-sanitizer, on a GPU:
#
#     common/tests/sanitize.sh build/gpu/bin
#
# The shapes are small and awkward: odd widths, rows that start off their alignment, one row to a warp and to a block.
# Exit code 1 where a tool found something or a result was wrong. docs/verified/ keeps what was printed.
set -u
[ $# -eq 1 ] || {
  echo "usage: $0 FOLDER_OF_PROGRAMS" >&2
  exit 2
}
code=0
for program in "$1"/[0-9][0-9]_*; do
  for tool in memcheck racecheck initcheck synccheck; do
    echo "== $(basename "$program") $tool"
    compute-sanitizer --tool "$tool" --error-exitcode 9 "$program" --check-only --shapes 3x127,5x1000,2x4097 \
      --dtype all --input normal >sanitize.log 2>&1 || {
      code=1
      cat sanitize.log
    }
    grep -E '^[0-9]+ checks?:|SUMMARY' sanitize.log
  done
done
rm -f sanitize.log
exit "$code"
