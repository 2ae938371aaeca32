#!/usr/bin/env bash
# Makes sure a Chromium is there for the browser tests: an installed one, or Debian's package.
# DFLASH_MESH_CHROMIUM names another executable. Without root and without a browser the tests
# skip and say so; under CI=true that is an error.
set -euo pipefail
if [ -n "${DFLASH_MESH_CHROMIUM:-}" ] || command -v chromium >/dev/null || command -v google-chrome >/dev/null; then
    exit 0
fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null
    exit 0
fi
echo "no Chromium found and no right to install one: browser tests will be skipped" >&2
[ "${CI:-}" != true ]
