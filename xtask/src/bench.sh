#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Prints the table of ratios on this machine; needs no Rust. Arguments choose groups: ledger rmm reads plan software gpu scan.
set -u

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd) || exit 2
exec "$here/ratios" "$@"
