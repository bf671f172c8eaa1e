#!/bin/sh
# Whether the committed pages are what make_docs prints: tools/check_docs.sh build/make_docs
set -eu
cd "$(dirname "$0")/.."
status=0
check() {
    "$1" "$2" | cmp -s - "$3" || { echo "$3 is not current: run 'make docs' and commit it" >&2; status=1; }
}
check "$1" reference docs/configuration.md
check "$1" man docs/plait.1
check "$1" completion packaging/plait.bash
exit $status
