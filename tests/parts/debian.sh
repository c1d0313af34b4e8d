#!/usr/bin/env bash
# Programs that only Debian has, unpacked into a private folder without root; what cannot be had is left out, and said.
set -u
mkdir -p "$1/debian" && cd "$1/debian" || exit 0
# A server that does not answer within seconds is not waited for.
apt() { apt-get -qq -o Acquire::Retries=0 -o Acquire::http::Timeout=5 -o Acquire::https::Timeout=5 "$@" >/dev/null 2>&1; }
missing() { echo "$1 cannot be had from Debian: the tests that need it will say that they were not run." >&2; }
for package in lighttpd; do
  command -v "$package" >/dev/null && continue
  [ -x "usr/sbin/$package" ] && continue
  command -v apt-get >/dev/null || { missing "$package"; continue; }
  apt download "$package" || { apt update; apt download "$package"; } || { missing "$package"; continue; }
  for archive in "$package"_*.deb; do dpkg -x "$archive" . ; done
  if ldd "usr/sbin/$package" 2>/dev/null | grep -q "not found"; then
    apt install -y "$package" || missing "$package"
  fi
done
exit 0
