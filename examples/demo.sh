#!/bin/sh
# The tour: import a run, add to it live, look at it, compact it, prove it.
# Needs `refold` on the PATH; leaves nothing behind.
set -eu

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

session='--user lin --session demo'
strategy=turn_window:full_turns=2,cached_turns=2

step() {
    printf '\n\033[1m%s\033[0m\n' "$*"
}
show() {
    printf '$ %s\n' "$*"
    "$@"
}
proved() {
    printf '\033[32m→ %s\033[0m\n' "$*"
}
fail() {
    printf 'demo: %s\n' "$*" >&2
    exit 1
}
# The number under a key of the JSON object on stdin.
number() {
    sed -n "s/.*\"$1\":\([0-9]*\)[,}].*/\1/p"
}
tokens() {
    refold context $session --strategy "$strategy" --json | number tokens
}

step '1. Import a transcript that is full of secrets'
show refold import "$run" $session
proved 'keys, passwords and personal data were replaced before anything was written'

step '2. An agent goes on with the session, through the Python API'
printf '$ python live.py URL lin demo\n'
"$python" "$here/live.py" "$REFOLD_DB" lin demo
events=$(refold sessions --json | number head_seq)
proved "a plan, a human's decision, an error, a result of 90 KB: $events events now"

step '3. Look for three of the planted secrets in the raw files'
for secret in AKIAFAKE4DEMO7KEY2QZ ghp_FakeDemoToken7Not4Real2Qw9Er5Ty8Ui31 110101199803074512
do
    grep -q "$secret" "$run" || fail "the sample does not hold $secret"
    printf '$ grep -r %s DATABASE KEYS\n' "$secret"
    ! grep -rqa "$secret" "$work" || fail "$secret is on disk"
done
proved 'they are in the transcript, and nowhere in the database or beside it'

step '4. What is in the store'
show refold sessions
proved 'one session of one user, with its size'

step '5. What happened, a line each'
show refold log $session --verbosity compact --after 52
proved 'calls are joined to their results; what was redacted or cut is marked'

step '6. What the model was sent before its 5th tool call, and is sent now'
show refold context $session --before-call 5 | sed -n '1,2p;4p'
show refold context $session --strategy "$strategy" | sed -n '1,2p;4p'
before=$(tokens)
proved "any moment can be shown again, byte for byte; now it is $before tokens"

step '7. Compact it'
show refold compact $session --strategy "$strategy" --until-idle
proved 'two turns stay whole, older ones are summarised two by two; the log keeps all'

step '8. The same context again'
show refold context $session --strategy "$strategy" | sed -n '1,2p;4,8p'
after=$(tokens)
[ "$after" -lt "$before" ] || fail "$after tokens are not fewer than $before"
proved "$after tokens instead of $before, with the summaries in place of their spans"

step '9. Prove all of it'
show refold verify
proved 'chains, heads, calls and results, and what each summary was made of'

step '10. Import the same transcript again'
show refold import "$run" $session
[ "$(refold sessions --json | number head_seq)" = "$events" ] || fail 'it added events'
proved 'nothing was added'

step '11. How much that is'
show refold stats
proved 'compressed and encrypted; the directory is deleted now'
