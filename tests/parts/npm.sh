#!/usr/bin/env bash
# Installs the packages of package.json into a private directory. Exits with 1 if they cannot be fetched, within seconds.
set -u
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1" && cp "$here/package.json" "$1" && cd "$1" || exit 1
unavailable() { echo "$1: the tests that need npm packages will be skipped." >&2; exit 1; }
command -v npm >/dev/null || unavailable "npm is not installed"
# Ask the registry once, with an empty cache that cannot answer for it: npm itself would retry for minutes.
cache=$(mktemp -d)
trap 'rm -rf "$cache"' EXIT
npm view @sinclair/typebox version --silent --cache "$cache" --fetch-retries=0 --fetch-timeout=5000 >/dev/null 2>&1 ||
  unavailable "The npm registry $(npm config get registry) cannot be reached"
npm install --silent --no-package-lock --no-fund --no-audit --fetch-retries=1 --fetch-timeout=60000 ||
  unavailable "Not all npm packages could be installed"
