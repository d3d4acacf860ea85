#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Runs PROGRAM on this machine; needs no Rust. Arguments are the program's.
set -u

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd) || exit 2
exec "$here/PROGRAM" "$@"
