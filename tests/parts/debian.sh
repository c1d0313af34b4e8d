#!/usr/bin/env bash
# Fetches the programs that the tests need from Debian. Servers are unpacked into a private directory, without root;
# shells and the browser depend on files below /usr and are installed, which takes root.
# Exits with 1 if a program is missing in the end.
set -u
mkdir -p "$1/debian" && cd "$1/debian" || exit 1
# Do not wait for a mirror that does not answer, and update the package lists at most once.
apt() { apt-get -qq -o Acquire::Retries=0 -o Acquire::http::Timeout=5 -o Acquire::https::Timeout=5 "$@" >/dev/null 2>&1; }
updated=no
with_lists() { # runs an apt-get command, and again with fresh package lists if it fails
  command -v apt-get >/dev/null || return 1
  apt "$@" && return
  [ $updated = yes ] && return 1
  updated=yes
  apt update && apt "$@"
}
status=0
missing() {
  echo "$1 is not installed, and Debian's package could not be fetched: the tests that need it will be skipped." >&2
  status=1
}
lacks_libraries() { ldd "usr/sbin/$1" 2>/dev/null | grep -q "not found"; }
for package in lighttpd nginx haproxy; do
  command -v "$package" >/dev/null && continue
  [ -x "usr/sbin/$package" ] && continue
  with_lists download "$package" || { missing "$package"; continue; }
  for archive in "$package"_*.deb; do dpkg -x "$archive" . ; done
  lacks_libraries "$package" || continue
  # Installing the package itself would start a service on port 80.
  libraries=$(apt-cache depends "$package" | sed -n 's/.*Depends: \(lib[^ ]*\)$/\1/p')
  # shellcheck disable=SC2086
  with_lists install -y --no-install-recommends $libraries
  lacks_libraries "$package" && { rm "usr/sbin/$package"; missing "$package"; }
done
for package in zsh fish chromium; do
  command -v "$package" >/dev/null && continue
  with_lists install -y --no-install-recommends "$package" || missing "$package"
done
exit $status
