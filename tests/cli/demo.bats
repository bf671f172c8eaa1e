#!/usr/bin/env bats
# The demo runs, learns, and keeps its numbers: a change that should not alter results leaves its seeded losses alone.

# metric STEP: that step's loss.
metric() {
    sed -n "${1}s/.*\"loss\":\([0-9.e-]*\),.*/\1/p" "$OUTPUT/metrics.jsonl"
}

# near GOT WANT: to 1e-5 relative. Instruction sets round in other orders, which leaves some 1e-8 after these steps.
near() {
    awk -v got="$1" -v want="$2" 'BEGIN { d = got - want; exit !(d < 1e-5 * want && d > -1e-5 * want) }' ||
        { echo "$1, not $2"; return 1; }
}

@test "the demo's losses are what they were" {
    cd "$BATS_TEST_TMPDIR"
    OUTPUT=$BATS_TEST_TMPDIR/demo
    "$PLAIT_ROOT/demo/run.sh" "$OUTPUT" >text 2>log || { cat log; return 1; }
    near "$(metric 1)" 4.61332696
    near "$(metric 20)" 3.11352353
    near "$(metric 120)" 2.47887928
    # The scene that was not trained on, before and after.
    [ "$(grep -c '^loss ' text)" = 2 ]
    near "$(awk '/^loss /{print $2; exit}' text)" 4.813623
    near "$(awk '/^loss /{last = $2} END {print last}' text)" 2.908764
    # It writes as plays are written: a name in capitals and a colon on a line of its own.
    sed -n '/^5\. /,$p' text | grep -Eq '^[A-Z]+:$'
}
