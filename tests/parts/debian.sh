#!/usr/bin/env bash
# Programs that only Debian has, unpacked into a private folder without root; what cannot be had is left out.
set -u
target=$1
mkdir -p "$target/debian" && cd "$target/debian" || exit 0
fetch() { apt-get download "$@" >/dev/null 2>&1; }
for package in lighttpd; do
  command -v "$package" >/dev/null && continue
  [ -x "usr/sbin/$package" ] && continue
  fetch "$package" || { apt-get update -qq >/dev/null 2>&1; fetch "$package"; } || continue
  for archive in "$package"_*.deb; do dpkg -x "$archive" . ; done
  if ldd "usr/sbin/$package" 2>/dev/null | grep -q "not found"; then
    apt-get install -y -qq "$package" >/dev/null 2>&1
  fi
done
exit 0
