#!/usr/bin/env bats
# A run that was stopped, at whatever moment and however, goes on to the same bits; and nothing that was there is lost.

setup() {
    cd "$BATS_TEST_TMPDIR"
    model=$PLAIT_ROOT/demo/stories260K
    data=$PLAIT_ROOT/demo/shakespeare-unseen.txt
    export OMP_WAIT_POLICY=passive
}

# train OUTPUT [ARGUMENTS]: a small run; what it says goes into OUTPUT.log.
train() {
    local output=$1
    shift
    "$PLAIT" train --model "$model" --data "$data" --data.sequence_length 32 --train.micro_batch 2 \
        --train.accumulation 2 --lora.dropout 0.1 --threads 1 --output "$output" "$@" 2>"$output.log"
}
# The same without an adapter.
train_full() {
    local output=$1
    shift
    "$PLAIT" train --model "$model" --data "$data" --data.sequence_length 32 --train.micro_batch 2 \
        --train.accumulation 2 --threads 1 --output "$output" "$@" 2>"$output.log"
}

# same A B: the results are the same bytes, and every step's numbers the same.
same() {
    local file=$1/adapter_model.safetensors
    [ -e "$file" ] || file=$1/model.safetensors
    cmp "$file" "$2/${file##*/}"
    numbers "$1" >numbers.a
    numbers "$2" >numbers.b
    cmp numbers.a numbers.b
}
numbers() {
    sed 's/,"tokens_per_s":[^,]*,"step_s":[^,]*//' "$1/metrics.jsonl"
}

# killed TRAIN ARGUMENTS: SIGKILL after a random time, again and again, until the run gets through.
killed() {
    local start=$1 kills=0
    shift
    RANDOM=$((SEED))
    while :; do
        "$start" b "$@" &
        local pid=$!
        # The first within the time that a whole run took; later ones get more, so that it comes to an end.
        local ms=$((took * (10 + RANDOM % 60) / 100 + kills * took / 50))
        sleep "$((ms / 1000)).$(printf %03d $((ms % 1000)))"
        pkill_tree $pid
        wait $pid 2>/dev/null && break
        kills=$((kills + 1))
        [ $kills -lt 60 ] || { cat b.log; return 1; }
        [ ! -s b.log ] || ! grep -q '^plait train: ' b.log || { cat b.log; return 1; }
    done
    echo "# killed $kills times" >&3
    [ $kills -gt 0 ]
}
# The function runs in a shell of its own, whose child is the program.
pkill_tree() {
    local child
    for child in $(cat "/proc/$1/task/$1/children" 2>/dev/null); do kill -KILL "$child" 2>/dev/null || true; done
    return 0
}

check_killed() {
    local start=train
    [ "$1" = lora ] || start=train_full
    local arguments=(--method "$1" --precision "$2" --train.steps 24 --checkpoint.every 1)
    local begin=${EPOCHREALTIME/./}
    $start a "${arguments[@]}"
    took=$(((${EPOCHREALTIME/./} - begin) / 1000))
    killed $start "${arguments[@]}"
    same a b
    [ "$(wc -l <b/metrics.jsonl)" = 24 ]
    # Nothing half-written is left.
    [ -z "$(find b -name '*.tmp' -o -name '*.part*')" ] || { find b; return 1; }
}

@test "killed: LoRA in f32" {
    SEED=1 check_killed lora f32
}
@test "killed: LoRA in bf16" {
    SEED=2 check_killed lora bf16
}
@test "killed: full in f32" {
    SEED=3 check_killed full f32
}
@test "killed: full in bf16" {
    SEED=4 check_killed full bf16
}

# signalled NAME STATUS: the step is finished, a checkpoint written, the exit status tells; the same command goes on.
signalled() {
    train a --method lora --train.steps 150
    train b --method lora --train.steps 150 &
    local pid=$! tries=0 status=0
    until [ -s b/metrics.jsonl ]; do
        sleep 0.02
        tries=$((tries + 1))
        [ $tries -lt 1000 ]
    done
    local child=$(cat /proc/$pid/task/$pid/children)
    child=${child% }
    # The thread that computes never sees the signal: SIGINT and SIGTERM are bits 1 and 14.
    local blocked=$(sed -n 's/^SigBlk:\t*//p' "/proc/$child/task/$child/status")
    [ $((0x${blocked#????????} & 0x4002)) = $((0x4002)) ]
    kill -"$1" "$child"
    wait $pid || status=$?
    [ $status = "$2" ] || { echo "exit status $status"; cat b.log; return 1; }
    grep -q 'stopped after step [0-9]* of 150; the same command goes on from there' b.log
    [ ! -e b/adapter_model.safetensors ]
    train b --method lora --train.steps 150
    grep -q 'going on from step [0-9]* of 150' b.log
    same a b
}

@test "SIGINT" {
    signalled INT 130
}
@test "SIGTERM" {
    signalled TERM 143
}

# fails STATUS TEXT ARGUMENTS of train: the message has TEXT.
fails() {
    local expected=$1 text=$2 status=0
    shift 2
    train "$@" || status=$?
    [ $status = "$expected" ] || { echo "exit status $status"; cat "$1.log"; return 1; }
    grep -qF -- "$text" "$1.log" || { cat "$1.log"; return 1; }
}

@test "a damaged checkpoint is named, and the one before can be used" {
    train a --method lora --train.steps 6 --checkpoint.every 2 --checkpoint.keep 0
    cp -r a b
    rm b/adapter_model.safetensors
    for file in adapter_model.safetensors optimizer.safetensors adapter_config.json; do
        rm -r b/checkpoints/step-00000006
        cp -r a/checkpoints/step-00000006 b/checkpoints
        printf x | dd of="b/checkpoints/step-00000006/$file" bs=1 seek=100 conv=notrunc status=none
        fails 2 "b/checkpoints/step-00000006/$file: is damaged" b --method lora --train.steps 6 --checkpoint.every 2 \
            --checkpoint.keep 0
        grep -qF 'remove it to go on from step 4' b.log
    done
    truncate -s 20 b/checkpoints/step-00000006/state.json
    fails 2 "b/checkpoints/step-00000006" b --method lora --train.steps 6 --checkpoint.every 2 --checkpoint.keep 0
    rm b/checkpoints/step-00000006/optimizer.safetensors
    cp a/checkpoints/step-00000006/* b/checkpoints/step-00000006/
    rm b/checkpoints/step-00000006/optimizer.safetensors
    fails 2 "optimizer.safetensors" b --method lora --train.steps 6 --checkpoint.every 2 --checkpoint.keep 0
    rm -r b/checkpoints/step-00000006
    train b --method lora --train.steps 6 --checkpoint.every 2 --checkpoint.keep 0
    grep -q 'going on from step 4 of 6' b.log
    same a b
}

@test "a folder that holds something else is left alone" {
    train a --method lora --train.steps 2
    cp a/adapter_model.safetensors before
    fails 2 "lora.r" a --method lora --train.steps 2 --lora.r 4
    fails 2 "optimizer.lr" a --method lora --train.steps 2 --optimizer.lr 1
    cmp before a/adapter_model.safetensors
    cp -r "$model" b
    fails 2 "b: holds model.safetensors of something else" b --method lora --train.steps 2
    cmp b/model.safetensors "$model/model.safetensors"
    [ ! -e b/run.yaml ]
}

@test "a run that is through does nothing more, and goes on when it is made longer" {
    train a --method lora --train.steps 4 --scheduler.name constant
    train b --method lora --train.steps 2 --scheduler.name constant
    cp b/adapter_model.safetensors before
    train b --method lora --train.steps 2 --scheduler.name constant
    cmp before b/adapter_model.safetensors
    [ "$(wc -l <b/metrics.jsonl)" = 2 ]
    train b --method lora --train.steps 4 --scheduler.name constant
    same a b
}

@test "an output that cannot be written" {
    touch file
    status=0
    "$PLAIT" train --model "$model" --data "$data" --train.steps 1 --output file/out 2>errors || status=$?
    [ $status = 1 ] || [ $status = 2 ]
    grep -q '^plait train: file' errors
    "$PLAIT" train --model "$model" --data "$data" --train.steps 1 --output file 2>errors && return 1
    grep -q '^plait train: file' errors
    [ "$(wc -l <errors)" -le 2 ]
}

@test "a full disk leaves the checkpoint before" {
    mkdir disk
    mount -t tmpfs -o size=8m none disk 2>/dev/null || skip "no right to mount a small disk"
    # Room for the data and some checkpoints; then none.
    status=0
    train a --method full --train.steps 6 --checkpoint.every 1 --checkpoint.keep 0 2>/dev/null || true
    "$PLAIT" train --model "$model" --data "$data" --data.sequence_length 32 --train.micro_batch 2 \
        --train.accumulation 2 --threads 1 --method full --train.steps 6 --checkpoint.every 1 --checkpoint.keep 0 \
        --output disk/b 2>errors || status=$?
    ls disk/b/checkpoints >left
    [ ! -e disk/b/model.safetensors ] || { umount disk; return 1; }
    cat errors
    # The disk gets room: the same command goes on.
    mount -o remount,size=64m disk
    "$PLAIT" train --model "$model" --data "$data" --data.sequence_length 32 --train.micro_batch 2 \
        --train.accumulation 2 --threads 1 --method full --train.steps 6 --checkpoint.every 1 --checkpoint.keep 0 \
        --output disk/b 2>errors2
    cp disk/b/model.safetensors got
    umount disk
    [ $status = 1 ]
    grep -q 'No space left on device' errors
    [ -s left ]
    ! grep -q tmp left
    train_full c --method full --train.steps 6
    cmp got c/model.safetensors
}
