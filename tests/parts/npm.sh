#!/usr/bin/env bash
# The packages of package.json, into a private folder. Where the registry does not answer, that is said within seconds.
set -u
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1" && cp "$here/package.json" "$1" && cd "$1" || exit 0
command -v npm >/dev/null || { echo "There is no npm: the tests that need packages of it will say that they were not run." >&2; exit 0; }
# Asked once and briefly, before npm tries again and again for minutes; with a new cache, because an old one answers, too.
cache=$(mktemp -d)
trap 'rm -rf "$cache"' EXIT
if ! npm view @sinclair/typebox version --silent --cache "$cache" --fetch-retries=0 --fetch-timeout=5000 >/dev/null 2>&1; then
  echo "The npm registry $(npm config get registry) cannot be reached: the tests that need packages of it will say that they were not run." >&2
  exit 0
fi
npm install --silent --no-package-lock --no-fund --no-audit --fetch-retries=1 --fetch-timeout=60000 ||
  echo "Not all packages of npm could be installed: the tests that need them will say that they were not run." >&2
exit 0
