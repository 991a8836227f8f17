#!/bin/sh
# The CPU layer and the stages on aarch64, under qemu-user, for a machine that is none: builds in build/aarch64 what it
# is told to, and runs the tests of it.
#
#     common/tests/aarch64.sh [STAGE ...]      the CPU layer's suites, these stages' checks, among them what
#                                              ./worklog run runs (default: 01_naive)
#
# On Debian, as root: it installs a cross compiler and qemu-user, and unpacks the libraries for aarch64, which the
# system itself does not get, in build/aarch64-root. It ends with 77 where these cannot be had. On an aarch64 machine
# none of this is needed: ./worklog test.
set -eu
cd "$(dirname "$0")/../.."
stages=${*:-01_naive}
suites="simt_errors_test simt_groups_test simt_primitives_test simt_runtime_test simt_types_test"
root=$PWD/build/aarch64-root
none() {
  echo "$0: $*" >&2
  exit 77
}

grep -qs '^ID=debian' /etc/os-release || none "works on Debian alone"
if ! command -v aarch64-linux-gnu-g++ >/dev/null || ! command -v qemu-aarch64 >/dev/null; then
  apt-get update -q || echo "trying with the package lists that are here"
  apt-get install -y -q --no-install-recommends g++-aarch64-linux-gnu qemu-user || none "no cross compiler to be had"
fi
if [ ! -d "$root/usr" ]; then
  # A package manager of its own, which believes that nothing is installed.
  mkdir -p "$root/apt/state/lists/partial" "$root/apt/cache/archives/partial"
  : >"$root/apt/state/status"
  cat >"$root/apt/apt.conf" <<END
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
Dir::State "$root/apt/state";
Dir::State::status "$root/apt/state/status";
Dir::Cache "$root/apt/cache";
END
  export APT_CONFIG="$root/apt/apt.conf"
  apt-get update -q || none "no package lists for aarch64 to be had"
  # Those that ./worklog has, with what stands behind their names.
  libraries=$(sed -nE 's/^libraries="(.*)"$/\1/p' worklog)
  # shellcheck disable=SC2086 # one word for each package
  apt-get install -y -q --download-only --no-install-recommends $libraries || none "no libraries to be had"
  for package in "$root"/apt/cache/archives/lib*.deb "$root"/apt/cache/archives/nlohmann*.deb; do
    case "${package##*/}" in
      libbenchmark* | libboost1* | libboost-context* | libcli11* | libfmt* | libgtest* | nlohmann*)
        dpkg -x "$package" "$root"
        ;;
    esac
  done
  rm -rf "${root:?}/apt"
  unset APT_CONFIG
fi

[ -f build/aarch64/build.ninja ] ||
  cmake --preset cpu -B build/aarch64 -DWORKLOG_WERROR=ON --toolchain common/tests/aarch64.cmake
# shellcheck disable=SC2086 # one word for each target
ninja -C build/aarch64 $suites $stages
# shellcheck disable=SC2086 # one word for each stage
pattern=$(printf '%s\n' $stages | sed 's/.*/^&\\.(article|narrow|strided|empty|grid)$/' | paste -sd'|')
# Emulated threads are slow: a wait for other blocks may seem endless in a test that sets the limit itself.
ctest --test-dir build/aarch64 --output-on-failure -j 2 --repeat until-pass:3 -R "^simt_|$pattern"
