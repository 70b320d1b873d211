#!/bin/sh
# The tour: import a run, add to it live, look at it, compact it, verify it, forget it.
# Needs `refold` on the PATH; leaves one file behind, the run as a page: the first
# argument, else demo.html in the working directory.
set -eu

page=${1:-demo.html}
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
run=$here/sample/agent_run.jsonl
python=$(dirname -- "$(command -v refold)")/python
[ -x "$python" ] || python=python3

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
unset REFOLD_KEYS REFOLD_MASTER_KEY REFOLD_CONFIG REFOLD_DEBUG
unset REFOLD_FULL_CONTEXT_TURNS REFOLD_CACHED_CONTEXT_TURNS
export REFOLD_HOME="$work/home" REFOLD_DB="sqlite:///$work/demo.db"

lin='--user lin --session demo'
strategy='--strategy turn_window:full_turns=2,cached_turns=2'
bold='' green='' plain=''
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then
    bold=$(printf '\033[1m') green=$(printf '\033[32m') plain=$(printf '\033[0m')
fi

step() {
    printf '\n%s%s%s\n' "$bold" "$*" "$plain"
}
show() {
    typed='$'
    for word do
        case $word in *' '*) typed="$typed '$word'" ;; *) typed="$typed $word" ;; esac
    done
    printf '%s\n' "$typed"
    "$@"
}
top() { # the first lines of what a command prints; all of it is kept for `tokens`
    lines=$1
    shift
    printf '$ %s | head -n %s\n' "$*" "$lines"
    "$@" >"$work/printed"
    head -n "$lines" "$work/printed"
}
tokens() {
    sed -n '1s/.* \([0-9,]*\) tokens.*/\1/p' "$work/printed" | tr -d ,
}
events() {
    refold sessions --json | sed -n 's/.*"head_seq": *\([0-9]*\).*/\1/p'
}
proved() {
    printf '%s→ %s%s\n' "$green" "$*" "$plain"
}
fail() {
    printf 'demo: %s\n' "$*" >&2
    exit 1
}

step '1. Import a transcript that is full of secrets'
show refold import "$run" $lin
proved 'keys, passwords and personal data were replaced before anything was written'

step '2. An agent continues the session, through the Python API'
show "$python" "$here/live.py" "$REFOLD_DB" lin demo
proved "a plan, a human's decision, an error, and a result of 88 KiB were appended"

step '3. Look for three of the planted secrets in the raw files'
for secret in AKIAFAKE4DEMO7KEY2QZ ghp_FakeDemoToken7Not4Real2Qw9Er5Ty8Ui31 110101199803074512
do
    grep -q "$secret" "$run" || fail "the sample does not hold $secret"
    printf '$ grep -r %s %s\n' "$secret" "$work"
    ! grep -rqa "$secret" "$work" || fail "$secret is on disk"
done
proved 'they are in the transcript, and in no file of the store'

step '4. What is in the store'
top 9 refold sessions
added=$(events)
proved "one session of one user, with $added events"

step '5. What happened, a line each'
show refold log $lin --verbosity compact
proved 'calls are joined to their results; what was redacted or cut is marked'

step '6. What the model was sent before its 5th tool call, and what it is sent now'
top 2 refold context $lin --before-call 5
top 4 refold context $lin $strategy
before=$(tokens)
proved "any earlier context can be shown again; today's has $before tokens"

step '7. Compact it'
show refold compact $lin $strategy --until-idle
proved 'two turns stay whole, older ones are summarised two by two; the log keeps every event'

step '8. The same context again'
top 8 refold context $lin $strategy
after=$(tokens)
[ "$after" -lt "$before" ] || fail "$after tokens are not fewer than $before"
proved "$after tokens instead of $before, with summaries in place of older turns"

step '9. Verify everything'
show refold verify
proved 'chains, heads, calls and results, and what each summary was made of'

step '10. Import the same transcript again'
top 4 refold import "$run" $lin
grep -q '^0 events written to 1 session' "$work/printed" || fail 'it added events'
proved "nothing was added: the session still has $added events"

step '11. How much is stored'
show refold stats
proved 'compressed and encrypted'

step '12. The run as one page, to open in a browser or to send'
show refold view $lin --html "$page"
proved 'turns, calls, contexts as they were sent; placeholders stay placeholders'

step '13. Forget the user, and show what is left to prove it'
certificate=$work/certificate.json
show refold erase --user lin --reason 'asked to be forgotten' --yes --out "$certificate"
show refold verify --certificate "$certificate"
printf '$ refold log %s\n' "$lin"
! refold log $lin 2>"$work/printed" || fail 'the log can still be read'
cat "$work/printed"
proved 'keys destroyed, rows deleted, every table searched; the directory is deleted now'

case $page in /*) ;; *) page=$PWD/$page ;; esac
printf '\nThe run as a page is in %s. Open it in a browser: nothing else is left.\n' "$page"
