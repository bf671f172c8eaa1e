#!/usr/bin/env bats
# Runs that are killed at a random moment: one of their processes, what started them, or all, some while a checkpoint is
# written. None loses a checkpoint that was finished, and each goes on: to the same bits on as many processes as before, to the same
# losses on another number. FAULT_RUNS says how many; `make fault` asks for 50.

setup() {
    cd "$BATS_TEST_TMPDIR"
    model=$PLAIT_ROOT/demo/stories260K
    data=$PLAIT_ROOT/demo/shakespeare-unseen.txt
    steps=30
}

# train RANKS OUTPUT [RANKS THAT BEGAN]: what is sharded goes with the number of processes.
train() {
    local began=${3:-$1}
    "$PLAIT" train --model "$model" --data "$data" --data.sequence_length 32 --train.micro_batch 2 --threads 1 \
        --train.accumulation $((6 / began)) --train.steps $steps --checkpoint.every 1 --checkpoint.keep 2 --method full \
        --precision bf16 --ranks "$1" --parallel.zero "$1" --output "$2" >"$2.log" 2>&1
}

# The step of the latest checkpoint in a folder; 0: none.
latest() {
    local last
    last=$(cd "$1/checkpoints" 2>/dev/null && ls -d step-???????? 2>/dev/null | tail -n 1)
    echo $((10#0${last#step-}))
}

# processes [RANK|launcher]: of the run that goes on, which is known by the folder that it works in.
processes() {
    local pid rank
    for pid in $(pgrep -x plait); do
        [ "$(readlink "/proc/$pid/cwd")" = "$PWD" ] || continue
        rank=$(tr '\0' '\n' 2>/dev/null <"/proc/$pid/environ" | sed -nE 's/^(PMI_RANK|OMPI_COMM_WORLD_RANK)=//p')
        [ -z "$1" ] || [ "$1" = "${rank:-launcher}" ] || continue
        echo "$pid"
    done
}

# When to kill: after a part of the time that a run takes, or in the middle of a checkpoint's writing.
await_moment() {
    local wanted=$((RANDOM % steps + 1)) ms tries
    if [ "$moment" = writing ]; then
        for tries in $(seq 2000); do
            set -- out/checkpoints/step-*.tmp
            [ -d "$1" ] && [ $((10#$(sed 's/[^0-9]//g' <<<"${1##*/}"))) -ge $wanted ] && return 0
            kill -0 "$job" 2>/dev/null || return 0
        done
        return 0
    fi
    ms=$((took * (RANDOM % 100) / 100))
    sleep "$((ms / 1000)).$(printf %03d $((ms % 1000)))"
}

# kill_run: SIGKILL to one process or to all; the others end by themselves, within seconds.
kill_run() {
    local begin=$SECONDS
    [ "$victim" = all ] && set -- $(processes) || set -- $(processes "$victim")
    [ $# = 0 ] || kill -KILL "$@" 2>/dev/null || true
    wait "$job" 2>/dev/null && finished=yes || finished=no
    while [ -n "$(processes)" ]; do
        [ $((SECONDS - begin)) -le 10 ] || { echo "processes go on without $victim"; return 1; }
        sleep 0.05
    done
}

near() {
    paste <(sed 's/.*"loss":\([^,]*\).*/\1/' "$1/metrics.jsonl") <(sed 's/.*"loss":\([^,]*\).*/\1/' "$2/metrics.jsonl") |
        awk -v n=$steps '{ d = $1 - $2; if (d < 0) d = -d; if (NF != 2 || d > 1e-3 * $1) { print; exit 1 } }
            END { if (NR != n) { print NR, "steps"; exit 1 } }'
}

@test "killed at random moments, a run loses no checkpoint and goes on" {
    local runs=${FAULT_RUNS:-6} i kills=0 writing=0 others=0 ranks again before after
    RANDOM=${FAULT_SEED:-1}
    declare -A took_of
    for ranks in 1 2 3; do
        local begin=${EPOCHREALTIME/./}
        train $ranks whole$ranks || { cat whole$ranks.log; return 1; }
        took_of[$ranks]=$(((${EPOCHREALTIME/./} - begin) / 1000))
    done
    for i in $(seq "$runs"); do
        rm -rf out
        ranks=$((i % 3 + 1)) took=${took_of[$((i % 3 + 1))]}
        moment=$([ $((RANDOM % 2)) = 0 ] && echo writing || echo any)
        victim=$((RANDOM % (2 * ranks + 1)))
        [ $victim -lt $ranks ] || victim=$([ $victim = $((2 * ranks)) ] && echo launcher || echo all)
        [ $ranks -gt 1 ] || victim=all
        train $ranks out &
        job=$!
        await_moment
        before=$(latest out)
        kill_run || { cat out.log; return 1; }
        after=$(latest out)
        [ "$after" -ge "$before" ] || { echo "step $before is gone, $after is the latest"; return 1; }
        [ $finished = yes ] || kills=$((kills + 1))
        ls -d out/checkpoints/*.tmp >/dev/null 2>&1 && writing=$((writing + 1))
        again=$ranks
        # Without a checkpoint it is another run: a step of other rows.
        [ $((RANDOM % 3)) != 0 ] || [ "$after" = 0 ] || again=$((ranks % 3 + 1))
        train $again out $ranks || { echo "run $i ($ranks, then $again)"; cat out.log; return 1; }
        [ "$after" = 0 ] || [ $finished = yes ] || grep -q "going on from step $after of $steps" out.log || { cat out.log; return 1; }
        [ -z "$(find out -name '*.tmp' -o -name '*.old')" ] || { find out; return 1; }
        if [ $again = $ranks ]; then
            cmp out/model.safetensors whole$ranks/model.safetensors
            cmp out/checkpoints/step-00000030/state.json whole$ranks/checkpoints/step-00000030/state.json
        else
            others=$((others + 1))
            near out whole$ranks
        fi
    done
    echo "# $runs runs, $kills of them killed before their end, $writing in a checkpoint's writing; $others went on" \
        "with another number of processes" >&3
    [ $kills -ge $((runs / 2)) ]
    [ "$runs" -lt 20 ] || { [ $writing -gt 0 ] && [ $others -gt 0 ]; }
}
