#!/usr/bin/env bats
# Several processes as a user starts them: the same losses as one, checkpoints that any number goes on from, and errors
# that are told once and end all.

setup() {
    cd "$BATS_TEST_TMPDIR"
    model=$PLAIT_ROOT/demo/stories260K
    # Rows of many lengths, 40 of them: an epoch of 5 steps of 8 rows.
    awk 'BEGIN { srand(3); for (i = 0; i < 40; i++) {
        q = "Tom has " i " apples."; a = "He has " i + 1 ".";
        for (n = int(rand() * 6); n > 0; n--) { q = q " He buys " n " more."; a = a " " i " + " n " = " i + n "." }
        printf "{\"question\": \"%s\", \"answer\": \"%s\"}\n", q, a } }' >qa.jsonl
    common=(--model "$model" --data qa.jsonl --data.sequence_length 96 --train.micro_batch 2 --train.clip 1
        --threads 1 --log.every 1 --checkpoint.every 3 --checkpoint.keep 0)
}

# train RANKS OUTPUT [MORE]
train() {
    local ranks=$1 output=$2
    shift 2
    "$PLAIT" train "${common[@]}" --ranks "$ranks" --output "$output" "$@" >>log 2>&1 || { cat log; return 1; }
}

# numbers FILE FIELD: the field of each line of a metrics.jsonl.
numbers() { sed "s/.*\"$2\":\([^,}]*\).*/\1/" "$1/metrics.jsonl"; }

# near A B: the same losses, to five digits.
near() {
    paste <(numbers "$1" loss) <(numbers "$2" loss) | awk '{ d = $1 - $2; if (d < 0) d = -d
        if (NF != 2 || d > 1e-5 * $1) { print "losses differ:", $0; exit 1 } n++ } END { if (n < 3) exit 1 }'
}

same() { cmp "$1/$3" "$2/$3"; }

@test "an epoch on 1, 2, 3 and 4 processes gives the same losses, its tail included" {
    train 1 one --train.accumulation 4 --train.epochs 1.1
    for n in 2 4; do
        train $n out$n --train.accumulation $((4 / n)) --train.epochs 1.1
        near one out$n
        [ "$(numbers one tokens)" = "$(numbers out$n tokens)" ]
    done
    # Six rows a step: six steps of them and one of two, of which the third process has none.
    train 1 one3 --train.accumulation 3 --train.epochs 0.95
    train 3 out3 --train.epochs 0.95
    near one3 out3
    [ "$(numbers one3 tokens)" = "$(numbers out3 tokens)" ]
}

@test "dropout drops the same, whoever computes a row" {
    more=(--method lora --lora.dropout 0.3 --lora.init gaussian --train.steps 5 --optimizer.lr 0.01)
    train 1 one --train.accumulation 3 "${more[@]}"
    train 3 three "${more[@]}"
    near one three
    train 1 other --train.accumulation 3 "${more[@]}" --lora.dropout 0
    ! near one other
}

@test "what is sharded does not change a bit, checkpoints included" {
    for method in full lora; do
        for precision in f32 bf16; do
            rm -rf z?
            for zero in 0 1 2 3; do
                more=()
                [ $zero != 3 ] || more=(--parallel.prefetch 2)
                train 3 z$zero --method $method --precision $precision --parallel.zero $zero --train.steps 4 "${more[@]}"
                [ $zero = 0 ] && continue
                for file in checkpoints/step-00000003/optimizer.safetensors checkpoints/step-00000003/state.json \
                    $(cd z0 && ls *.safetensors); do
                    same z0 z$zero $file
                done
            done
        done
    done
}

@test "groups that share out among themselves do not change a bit either" {
    train 4 whole --train.steps 4
    for zero in 1 2 3; do
        train 4 z$zero --train.steps 4 --parallel.zero $zero --parallel.shard_size 2
        same whole z$zero model.safetensors
        same whole z$zero checkpoints/step-00000003/state.json
    done
    run "$PLAIT" train "${common[@]}" --ranks 3 --output out --parallel.zero 1 --parallel.shard_size 2 --train.steps 1
    [ "$status" = 2 ]
    [ "$(grep -c 'shard_size is 2, and 3 processes are no multiple' <<<"$output")" = 1 ]
}

@test "any number of processes goes on from a checkpoint, and the same number to the same bits" {
    train 4 whole --parallel.zero 3 --train.steps 6
    for n in 4 1 2 3; do
        rm -rf part
        cp -r whole part
        rm -rf part/checkpoints/step-00000006 part/model.safetensors
        train $n part --parallel.zero $((n - 1)) --train.steps 6
        near whole part
        grep -q "going on from step 3 of 6" log
        [ $n != 4 ] || same whole part model.safetensors
    done
}

@test "validation, the best result and early stop work as in one process" {
    more=(--train.steps 6 --data.validation_split 0.2 --train.eval_every 2 --checkpoint.best true --optimizer.lr 0.01)
    train 1 one --train.accumulation 3 "${more[@]}"
    train 3 three "${more[@]}"
    near one three
    paste <(grep -o '"val_loss":[0-9.]*' one/metrics.jsonl) <(grep -o '"val_loss":[0-9.]*' three/metrics.jsonl) |
        tr -d '"a-z_:' | awk '{ d = $1 - $2; if (d < 0) d = -d; if (d > 1e-4 * $1) exit 1; n++ } END { if (n != 3) exit 1 }'
    [ -f three/best/model.safetensors ]
}

@test "the plan is what each process takes and sends" {
    for zero in 0 1 2 3; do
        rm -rf out
        more=(--train.steps 3 --parallel.zero $zero --train.accumulation 2)
        "$PLAIT" plan "${common[@]}" "${more[@]}" --ranks 3 --json true 2>>log | tr -d ' \n' |
            sed 's/.*"memory_bytes":{\([^}]*\)}.*/\1/' >planned
        echo >>planned
        train 3 out "${more[@]}"
        tail -n 1 out/metrics.jsonl | sed 's/.*"memory_bytes":{\([^}]*\)}.*/\1/' >real
        cmp planned real || { cat planned real; return 1; }
    done
}

@test "a mistake is told once, with its usual status" {
    run "$MPIEXEC" -n 3 "$PLAIT" train "${common[@]}" --output out --parallel.zero 4
    [ "$status" = 2 ]
    [ "$(grep -c 'parallel.zero is 4' <<<"$output")" = 1 ]
    run "$MPIEXEC" -n 3 "$PLAIT" train "${common[@]}" --output out --train.steps 1 --method lora --adapter nothing
    [ "$status" = 2 ]
    [ "$(grep -c 'nothing' <<<"$output")" = 1 ]
    run "$MPIEXEC" -n 2 "$PLAIT" eval --model "$model" --data qa.jsonl
    [ "$status" = 2 ]
    [ "$(grep -c '2 processes were started' <<<"$output")" = 1 ]
    run "$MPIEXEC" -n 2 "$PLAIT" train "${common[@]}" --ranks 3 --output out
    [ "$status" = 2 ]
    [ ! -e out ]
}

@test "processes that were told different things say which, and do not begin" {
    cp qa.jsonl other.jsonl
    sed -i 's/apples/pears/' other.jsonl
    cat >differ.sh <<'SH'
#!/bin/sh
# The last process is started with other arguments, or finds other data under the same name.
rank=${PMI_RANK:-$OMPI_COMM_WORLD_RANK}
if [ "$1" = data ]; then
    shift
    [ "$rank" != 1 ] || cd elsewhere
    exec "$@"
fi
shift
[ "$rank" = 1 ] && exec "$@" --optimizer.lr 0.5
exec "$@"
SH
    chmod +x differ.sh
    mkdir elsewhere
    cp other.jsonl elsewhere/qa.jsonl
    run "$MPIEXEC" -n 2 ./differ.sh arguments "$PLAIT" train "${common[@]}" --output out --train.steps 1
    [ "$status" = 2 ]
    [[ "$output" == *"optimizer.lr of process 1"* ]]
    [ ! -e out ]
    run "$MPIEXEC" -n 2 ./differ.sh data "$PLAIT" train "${common[@]}" --output "$PWD/out" --train.steps 1
    [ "$status" = 2 ]
    [[ "$output" == *"the data, as it was read, of process 1"* ]]
}

@test "a killed process ends the others, and the same command goes on" {
    train 3 whole --train.steps 40 --checkpoint.every 5
    for victim in 0 1 2; do
        rm -rf out
        "$PLAIT" train "${common[@]}" --ranks 3 --output out --train.steps 40 --checkpoint.every 5 >>log 2>&1 &
        mpiexec=$!
        for i in $(seq 200); do [ -d out/checkpoints/step-00000005 ] && break; sleep 0.02; done
        # The processes of this run, by the folder that they work in.
        for pid in $(pgrep -x plait); do
            [ "$(readlink /proc/$pid/cwd)" = "$PWD" ] || continue
            tr '\0' '\n' </proc/$pid/environ 2>/dev/null | grep -qE "^(PMI_RANK|OMPI_COMM_WORLD_RANK)=$victim$" && kill -9 $pid
        done
        begin=$SECONDS
        if wait $mpiexec; then [ -f out/model.safetensors ]; fi # it may have been faster
        [ $((SECONDS - begin)) -le 10 ]
        train 3 out --train.steps 40 --checkpoint.every 5
        same whole out model.safetensors
    done
}

@test "a signal stops all after a step, with a checkpoint and the signal's status" {
    train 2 whole --train.steps 300 --checkpoint.every 0
    for signal in TERM INT; do
        rm -rf out
        "$PLAIT" train "${common[@]}" --ranks 2 --output out --train.steps 300 --checkpoint.every 0 >>log 2>&1 &
        launcher=$!
        for i in $(seq 200); do [ -s out/metrics.jsonl ] && break; sleep 0.02; done
        kill -$signal $launcher
        status=0
        wait $launcher || status=$?
        [ $status = $([ $signal = TERM ] && echo 143 || echo 130) ] || { echo "$signal: exit status $status"; return 1; }
        [ -d out/checkpoints ]
        train 2 out --train.steps 300 --checkpoint.every 0
        same whole out model.safetensors
    done
}

@test "what each process worked is told" {
    train 3 out --train.steps 3 --log.profile true
    grep -q 'processes worked [0-9.]* s on average; the slowest, number [0-2], [0-9.]* s' log
    [ "$(grep -c '"process_busy_s":\[[0-9.e-]*,[0-9.e-]*,[0-9.e-]*\]' out/metrics.jsonl)" = 3 ]
}

@test "an output folder that one process does not see is told at the start" {
    cat >elsewhere.sh <<'SH'
#!/bin/sh
[ "${PMI_RANK:-$OMPI_COMM_WORLD_RANK}" != 1 ] || cd elsewhere
exec "$@"
SH
    chmod +x elsewhere.sh
    mkdir elsewhere
    for there in no yes; do
        [ $there = no ] || mkdir -p elsewhere/out
        run "$MPIEXEC" -n 3 ./elsewhere.sh "$PLAIT" train --model "$model" --data "$PWD/qa.jsonl" --output out \
            --train.steps 1 --threads 1
        [ "$status" = 2 ]
        [[ "$output" == *"process 1 of 3: out: is not the folder of that name which process 0 works in"* ]]
        [ ! -e out ]
    done
}

@test "a process that cannot write is named, and ends all" {
    [ "$(id -u)" = 0 ] && skip "root writes everywhere"
    train 2 out --train.steps 3
    chmod a-w out/checkpoints
    run "$PLAIT" train "${common[@]}" --ranks 2 --output out --train.steps 6
    chmod u+w out/checkpoints
    [ "$status" = 1 ]
    [[ "$output" == *"cannot be"* ]]
}
