#!/bin/sh
# Installs what is missing of the groups of deps.txt that are given: tools/deps.sh build test
set -eu
cd "$(dirname "$0")/.."
wanted=$(for group in "$@"; do sed -n "s/^$group: *\([^ #]*\).*/\1/p" deps.txt; done)

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    echo "This system has no apt-get. plait needs what these packages of Debian hold:" $wanted >&2
    exit 1
fi

missing=
for package in $wanted; do
    status=$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || true)
    [ "$status" = "install ok installed" ] || missing="$missing $package"
done
if [ -z "$missing" ]; then
    echo "Nothing is missing."
    exit 0
fi

sudo=
if [ "$(id -u)" != 0 ]; then
    sudo=sudo
    if ! command -v sudo >/dev/null; then
        echo "Missing:$missing. There is no sudo here; as root, run: apt-get install$missing" >&2
        exit 1
    fi
fi
echo "+ ${sudo:+sudo }apt-get update"
$sudo apt-get update -q
echo "+ ${sudo:+sudo }apt-get install -y --no-install-recommends$missing"
$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $missing
