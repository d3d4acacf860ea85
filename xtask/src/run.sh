#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Runs the GPU tests listed in tests.tsv beside this file, each in a process of its own, one at a time.
# Needs a POSIX shell with grep, awk, and xz and tar or else python3, and no Rust; programs are unpacked under TMPDIR.
set -uf

usage() {
    cat <<'END'
Usage: run.sh [--list]

Runs every test of tests.tsv on the GPU present, each in a process of its own, and closes with
`N passed, N failed`. With --list it only names the tests.

  METRALE_TEST_FILTER   run only tests whose program::test matches this extended regular expression
  METRALE_TEST_SKIP     leave out tests whose program::test matches this one
  METRALE_TEST_WRAPPER  command to run each test under, such as
                        compute-sanitizer --tool memcheck --leak-check full --report-api-errors no --error-exitcode 9
  METRALE_TEST_TIMEOUT  seconds a test may take (default 120, 0 for no limit; needs `timeout`)
  METRALE_TEST_LOGS     folder that keeps the whole output of each test
  METRALE_TEST_GPUS     how many GPUs there are (default: as nvidia-smi, or else /dev, says). Tests that need two are
                        reported as not run where there is one

Exit status: 0 all passed, 1 a test failed, 2 nothing ran.
END
}

refuse() {
    echo "run.sh: $*" >&2
    exit 2
}

list_only=
case ${1:-} in
'') ;;
--list) list_only=1 ;;
-h | --help) usage && exit 0 ;;
*) usage >&2 && refuse "unknown argument: $1" ;;
esac

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd) || refuse "cannot tell which folder this file is in"
filter=${METRALE_TEST_FILTER:-}
skip=${METRALE_TEST_SKIP:-}
wrapper=${METRALE_TEST_WRAPPER:-}
limit=${METRALE_TEST_TIMEOUT:-120}
gpus=${METRALE_TEST_GPUS:-}
tab=$(printf '\t')

[ -r "$here/tests.tsv" ] || refuse "no tests.tsv in $here"
case $limit in
*[!0-9]*) refuse "METRALE_TEST_TIMEOUT is '$limit', not a number of seconds" ;;
esac
case $gpus in
*[!0-9]*) refuse "METRALE_TEST_GPUS is '$gpus', not a number of GPUs" ;;
'')
    gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ')
    if [ "$gpus" -eq 0 ]; then
        for node in /dev/nvidia[0-9]*; do
            [ ! -e "$node" ] || gpus=$((gpus + 1))
        done
    fi
    ;;
esac
for expression in "$filter" "$skip"; do
    echo | grep -Eq -e "$expression" 2>/dev/null
    [ $? -le 1 ] || refuse "not an extended regular expression: $expression"
done

# Command-line tests find the program here instead of where it was built.
if [ -x "$here/metrale" ]; then
    CARGO_BIN_EXE_metrale=$here/metrale
    export CARGO_BIN_EXE_metrale
fi

guard=
if [ "$limit" -gt 0 ]; then
    if timeout -k 1 5 true 2>/dev/null; then
        guard="timeout -k 10 $limit"
    elif timeout 5 true 2>/dev/null; then
        guard="timeout $limit"
    else
        echo "note: no usable \`timeout\` here, so tests run without a time limit"
    fi
fi

scratch=$(mktemp -d) || refuse "cannot make a temporary folder"
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
logs=${METRALE_TEST_LOGS:-$scratch}
mkdir -p "$logs" || refuse "cannot make the folder $logs"
results=$scratch/results.tsv
: >"$results"

matches() {
    printf '%s\n' "$1" | grep -Eq -e "$2"
}

# Where the programs are: beside this file, or unpacked from there.
programs=$here/programs
if [ -f "$here/programs.tar.xz" ] && [ -z "$list_only" ]; then
    programs=$scratch/programs
    mkdir -p "$programs"
    xz -dc "$here/programs.tar.xz" 2>/dev/null | tar -xf - -C "$programs" 2>/dev/null ||
        python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' \
            "$here/programs.tar.xz" "$programs" ||
        refuse "cannot unpack programs.tar.xz: it takes xz and tar, or python3"
fi

# What the end of one test means, given its exit status and its output.
verdict() {
    if [ "$1" -eq 0 ]; then
        # Status 0 also comes from a name that matched nothing: only a test that was counted passed.
        if grep -q 'test result: ok\. 1 passed' "$2"; then echo ok; else echo "no such test ran"; fi
    elif [ -n "$guard" ] && { [ "$1" -eq 124 ] || [ "$1" -eq 137 ]; }; then
        echo "no end within $limit s"
    else
        echo "exit status $1"
    fi
}

skipped=0
not_run=0
while IFS=$tab read -r program test || [ -n "$program" ]; do
    [ -n "$program" ] || continue
    name=$program::$test
    if [ -n "$filter" ] && ! matches "$name" "$filter"; then
        continue
    fi
    if [ -n "$skip" ] && matches "$name" "$skip"; then
        skipped=$((skipped + 1))
        continue
    fi
    if [ -n "$list_only" ]; then
        echo "$name"
        printf 'listed\n' >>"$results"
        continue
    fi
    case $test in
    *::two_devices)
        if [ "$gpus" -lt 2 ]; then
            echo "not run $name: needs two GPUs"
            not_run=$((not_run + 1))
            continue
        fi
        ;;
    esac
    log=$logs/$(printf '%s' "$name" | tr -c 'A-Za-z0-9_.-' '-').log
    start=$(date +%s)
    # Unquoted on purpose: each is a command and its arguments, or nothing.
    # shellcheck disable=SC2086
    $guard $wrapper "$programs/$program" --ignored --exact "$test" --nocapture >"$log" 2>&1 </dev/null
    outcome=$(verdict $? "$log")
    seconds=$(($(date +%s) - start))
    if [ "$outcome" = ok ]; then
        printf 'ok      %s (%d s)\n' "$name" "$seconds"
    else
        printf 'FAILED  %s (%d s): %s\n' "$name" "$seconds" "$outcome"
        tail -n 60 "$log" | sed 's/^/        | /'
    fi
    printf '%s\t%s\t%s\t%s\n' "$outcome" "$seconds" "$program" "$test" >>"$results"
done <"$here/tests.tsv"

if [ -n "$list_only" ]; then
    [ -s "$results" ] && exit 0
    refuse "no test to list"
fi

echo
awk -F '\t' '
    { total[$3]++; seconds[$3] += $2; if ($1 == "ok") passed[$3]++ }
    !($3 in seen) { seen[$3] = 1; order[++programs] = $3; if (length($3) > width) width = length($3) }
    END {
        if (width < 7) width = 7
        printf "%-" width "s %7s %7s %8s\n", "program", "passed", "failed", "seconds"
        for (i = 1; i <= programs; i++) {
            p = order[i]
            printf "%-" width "s %7d %7d %8d\n", p, passed[p], total[p] - passed[p], seconds[p]
        }
    }' "$results"
awk -F '\t' '$1 != "ok" { printf "FAILED  %s::%s: %s\n", $3, $4, $1 }' "$results"
[ "$skipped" -eq 0 ] || echo "$skipped left out by METRALE_TEST_SKIP"
[ "$not_run" -eq 0 ] || echo "$not_run not run: they need two GPUs, and there is $gpus"
[ -s "$results" ] || echo "no test ran: tests.tsv names none that the filter lets through"
passed=$(awk -F '\t' '$1 == "ok"' "$results" | wc -l)
failed=$(awk -F '\t' '$1 != "ok"' "$results" | wc -l)
echo "$((passed)) passed, $((failed)) failed"
[ -s "$results" ] || exit 2
[ "$((failed))" -eq 0 ]
