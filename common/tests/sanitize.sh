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
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
# Several at a time: each tool spends most of its time on the host.
for stage; do
  for tool in memcheck racecheck initcheck synccheck; do echo "$stage $tool"; done
done >"$logs/all"
# shellcheck disable=SC2016 # the inner shell is to expand these
xargs -P "$(($(nproc) / 2 > 0 ? $(nproc) / 2 : 1))" -L 1 sh -c '
  compute-sanitizer --tool "$4" --error-exitcode 9 "$1/$3" --check-only --shapes 3x127,5x1000,2x4097,2x20000 \
    --dtype all --input normal >"$2/$3-$4" 2>&1
  echo $? >"$2/$3-$4.code"' run "$folder" "$logs" <"$logs/all"
code=0
while read -r stage tool; do
  echo "== $stage $tool"
  log="$logs/$stage-$tool"
  [ "$(cat "$log.code" 2>/dev/null)" = 0 ] || {
    code=1
    cat "$log"
  }
  grep -E '^[0-9]+ checks?:|SUMMARY' "$log"
done <"$logs/all"
exit "$code"
