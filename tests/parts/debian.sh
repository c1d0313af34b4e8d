#!/usr/bin/env bash
# Programs that only Debian has: one that can stand alone is unpacked into a private folder, without root; the others are installed.
# What cannot be had is left out, and said.
set -u
mkdir -p "$1/debian" && cd "$1/debian" || exit 0
# A server that does not answer within seconds is not waited for, and is asked for its lists no more than once.
apt() { apt-get -qq -o Acquire::Retries=0 -o Acquire::http::Timeout=5 -o Acquire::https::Timeout=5 "$@" >/dev/null 2>&1; }
asked=no
with_lists() { # a command of apt, tried again with fresh lists
  command -v apt-get >/dev/null || return 1
  apt "$@" && return
  [ $asked = yes ] && return 1
  asked=yes
  apt update && apt "$@"
}
missing() { echo "$1 cannot be had from Debian: the tests that need it will say that they were not run." >&2; }
for package in lighttpd nginx haproxy; do
  command -v "$package" >/dev/null && continue
  [ -x "usr/sbin/$package" ] && continue
  with_lists download "$package" || { missing "$package"; continue; }
  for archive in "$package"_*.deb; do dpkg -x "$archive" . ; done
  if ldd "usr/sbin/$package" 2>/dev/null | grep -q "not found"; then
    apt install -y "$package" || missing "$package"
  fi
done
# Shells, which look for their own files below /usr; and a browser, with its hundred libraries. To install takes root.
for package in zsh fish chromium; do
  command -v "$package" >/dev/null && continue
  with_lists install -y --no-install-recommends "$package" || missing "$package"
done
exit 0
