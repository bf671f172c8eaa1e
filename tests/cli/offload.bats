#!/usr/bin/env bats
# What lies on disk changes no number and no file; the plan tells its bytes; and what is wrong with a disk is told.

setup() {
    cd "$BATS_TEST_TMPDIR"
    model=$PLAIT_ROOT/demo/stories260K
    export OMP_WAIT_POLICY=passive
    awk 'BEGIN { for (i = 0; i < 40; i++)
        printf "{\"question\": \"Tom has %d apples.\", \"answer\": \"He has %d.\"}\n", i, i + 1 }' >qa.jsonl
    common=(--model "$model" --data qa.jsonl --data.sequence_length 64 --train.micro_batch 2 --threads 2
        --checkpoint.every 2 --checkpoint.keep 0)
    ways=("optimizer" "params" "optimizer params")
}

# flags WAY: sets `flags` to those that put the words of WAY on disk.
flags() {
    flags=()
    for word in $1; do flags+=(--memory.offload.$word disk); done
    [ "$1" = params ] || flags+=(--memory.offload.buffer 20000)
}

# train OUTPUT [MORE]
train() {
    local output=$1
    shift
    "$PLAIT" train "${common[@]}" --output "$output" "$@" 2>>log || { cat log; return 1; }
}

# same A B: results and checkpoints.
same() {
    (cd "$1" && find . -name '*.safetensors' -o -name state.json) | sort >files
    [ "$(wc -l <files)" -ge 5 ]
    while read -r file; do cmp "$1/$file" "$2/$file"; done <files
}

# tags FILE: the numbers of a metrics.jsonl's last line, or of a plan, by the name of the object.
numbers_of() { tr -d ' \n' <"$1" | sed "s/.*\"$2\":{\([^}]*\)}.*/\1/"; }

@test "results and checkpoints are the same bytes" {
    for method in full lora; do
        for precision in f32 bf16; do
            more=(--method $method --precision $precision --train.steps 4 --train.accumulation 2 --memory.recompute 2)
            rm -rf memory disk
            train memory "${more[@]}"
            for way in "${ways[@]}"; do
                rm -rf disk
                flags "$way"
                train disk "${more[@]}" "${flags[@]}"
                same memory disk
            done
        done
    done
}

@test "a run goes on with its states elsewhere, and starts of adapters that change the base" {
    more=(--method lora --lora.init pissa --lora.dora true --precision bf16 --train.steps 4)
    train memory "${more[@]}"
    flags "optimizer params"
    train disk "${more[@]}" "${flags[@]}"
    same memory disk
    for output in memory disk; do rm -r $output/checkpoints/step-00000004 $output/adapter_model.safetensors; done
    train memory "${more[@]}" "${flags[@]}"
    train disk "${more[@]}"
    [ "$(grep -c 'going on from step 2' log)" = 2 ]
    same memory disk
}

@test "the plan is the run, on disk too" {
    for way in "${ways[@]}"; do
        for precision in f32 bf16; do
            flags "$way"
            more=(--precision $precision --train.steps 3 "${flags[@]}")
            rm -rf out
            "$PLAIT" plan "${common[@]}" "${more[@]}" --json true >planned 2>>log
            "$PLAIT" plan "${common[@]}" "${more[@]}" 2>>log | grep -q '^on disk .* MiB of what is offloaded; a step reads'
            train out "${more[@]}"
            tail -n 1 out/metrics.jsonl >real
            [ "$(numbers_of planned memory_bytes)" = "$(numbers_of real memory_bytes)" ]
            [ "$(numbers_of planned disk_bytes | sed 's/"offloaded":[1-9][0-9]*,//')" = "$(numbers_of real disk_bytes)" ]
        done
    done
    "$PLAIT" plan "${common[@]}" 2>>log | { ! grep "on disk"; }
}

@test "nothing is left of it, and a kill leaves nothing" {
    flags "optimizer params"
    train out --train.steps 2 "${flags[@]}"
    [ -z "$(find out -name '*offload*')" ]
    mkdir scratch
    "$PLAIT" train "${common[@]}" --output killed --train.steps 100000 "${flags[@]}" --memory.offload.path scratch \
        2>>log &
    for i in $(seq 200); do [ -s killed/metrics.jsonl ] && break; sleep 0.02; done
    kill -9 $!
    wait $! || true
    [ -z "$(ls -A scratch)" ]
}

@test "the run file has the fields as they are nested, and is read again" {
    cat >run.yaml <<END
memory:
  recompute: full
  offload: {optimizer: disk, path: .}
train: {steps: 2}
END
    "$PLAIT" train run.yaml "${common[@]}" --output out 2>>log
    grep -q '^  offload:$' out/run.yaml
    grep -q '^    optimizer: disk' out/run.yaml
    "$PLAIT" train out/run.yaml --output again 2>>log
    cmp out/model.safetensors again/model.safetensors
}

# fails WORDS ARGUMENTS: the run fails with these words in one line.
fails() {
    local words=$1
    shift
    run "$PLAIT" train "${common[@]}" --output out --train.steps 1 "$@"
    [ "$status" != 0 ]
    [[ "$output" == *"$words"* ]] || { echo "$output"; return 1; }
    [ ! -e out/model.safetensors ]
}

@test "what does not go together, or is not there" {
    touch file
    disk="--memory.offload.optimizer disk"
    fails "--memory.offload.path is nowhere, and there is no such folder" $disk --memory.offload.path nowhere
    fails "--memory.offload.path is file, and there is no such folder" $disk --memory.offload.path file
    fails "--memory.offload.path is /proc, where no file can be made" $disk --memory.offload.path /proc
    only="it applies with memory.offload.optimizer=disk"
    fails "--memory.offload.path is set, but memory.offload.optimizer is none; $only or " --memory.offload.path .
    fails "--memory.offload.buffer is set, but memory.offload.optimizer is none; $only only" \
        --memory.offload.buffer 1MiB
    fails "which is not supported: give disk, and memory.offload.path" --memory.offload.optimizer nvme
    fails "--memory.offload.params is 'gpu'" --memory.offload.params gpu
}

@test "offload that saves no memory is warned of" {
    vain="disk, and saves no memory: with it the run takes"
    flags "optimizer params"
    "$PLAIT" plan "${common[@]}" "${flags[@]}" 2>plan.log
    ! grep "$vain" plan.log
    # Every block is gathered ahead, so that all of them have a place in memory.
    more=(--train.steps 1 --parallel.zero 3 --parallel.prefetch 40)
    for command in plan "train --output out"; do
        "$PLAIT" $command "${common[@]}" "${more[@]}" --method lora --memory.offload.params disk 2>vain.log
        [ "$(grep -c "warning: --memory.offload.params is $vain" vain.log)" = 1 ]
    done
}

@test "a disk that is full is told at the start; one in memory is warned of" {
    mkdir small
    mount -t tmpfs -o size=1m tmpfs small 2>/dev/null || skip "mounting needs root"
    fails "small has no room for what is offloaded: " --memory.offload.optimizer disk --memory.offload.path small || {
        umount small
        return 1
    }
    umount small
    [[ "$output" == *" MiB are needed and 1.0 MiB are free"* ]]
    mount -t tmpfs -o size=100m tmpfs small
    run "$PLAIT" train "${common[@]}" --output out --train.steps 1 --memory.offload.optimizer disk \
        --memory.offload.path small
    umount small
    [ "$status" = 0 ]
    [[ "$output" == *"lies in memory (tmpfs)"* ]]
}
