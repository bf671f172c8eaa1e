#!/usr/bin/env bats
# Errors that one process meets alone: all end within seconds, the message is told once, with the process that met it, and
# what was written before is still there.

setup() {
    cd "$BATS_TEST_TMPDIR"
    model=$PLAIT_ROOT/demo/stories260K
    data=$PLAIT_ROOT/demo/shakespeare-unseen.txt
    common=(--model "$model" --data "$data" --data.sequence_length 32 --train.micro_batch 2 --threads 1 --train.steps 6
        --checkpoint.every 2 --checkpoint.keep 0)
}

# ends STATUS TEXT COMMAND...: within ten seconds, with TEXT once.
ends() {
    local expected=$1 text=$2 status=0 begin=$SECONDS
    shift 2
    timeout -k 1 60 "$@" >log 2>&1 || status=$?
    [ $((SECONDS - begin)) -le 10 ] || { echo "took $((SECONDS - begin)) s"; cat log; return 1; }
    [ $status = "$expected" ] || { echo "exit status $status"; cat log; return 1; }
    [ "$(grep -cF -- "$text" log)" = 1 ] || { cat log; return 1; }
}

# A wrapper under which the process of a number is started otherwise: `only NUMBER COMMANDS PROGRAM ARGUMENTS`.
wrapper() {
    cat >only.sh <<'SH'
#!/bin/bash
[ "${PMI_RANK:-$OMPI_COMM_WORLD_RANK}" != "$1" ] || eval "$2"
shift 2
exec "$@"
SH
    chmod +x only.sh
}

@test "an allocation that fails in one process" {
    local process number count tried=0 told status i
    PLAIT_FAIL=1:0 "$MPIEXEC" -n 2 "$PLAIT_FAILING" train "${common[@]}" --output whole --parallel.zero 3 >log 2>&1
    count=$(sed -n 's/^\([0-9]*\) allocations$/\1/p' log)
    [ "$count" -gt 1000 ]
    RANDOM=5
    for i in $(seq "${FAULT_RUNS:-16}"); do
        process=$((i % 2)) number=$((1 + (RANDOM * 32768 + RANDOM) % count))
        rm -rf out
        status=0
        local begin=$SECONDS
        PLAIT_FAIL=$process:$number timeout -k 1 60 "$MPIEXEC" -n 2 "$PLAIT_FAILING" train "${common[@]}" --output out \
            --parallel.zero 3 >log 2>&1 || status=$?
        [ $((SECONDS - begin)) -le 10 ] || { echo "allocation $number of $process: $((SECONDS - begin)) s"; cat log; return 1; }
        [ $status != 0 ] || continue # it can do without
        # Where jansson is refused memory the program ends at once, and mpiexec ends the others with a status of its own.
        told=$(grep -c 'out of memory' log)
        [ "$told" = 1 ] && ! grep -qi 'segmentation' log ||
            { echo "allocation $number of $process: status $status"; cat log; return 1; }
        tried=$((tried + 1))
    done
    [ $tried -gt 5 ]
}

@test "allocations that fail in two processes at different places" {
    local zero before count status i tried=0
    for zero in 0 3; do
        # What comes after the first step's end is counted by a run of one step.
        PLAIT_FAIL=1:0 "$MPIEXEC" -n 3 "$PLAIT_FAILING" train "${common[@]}" --output one --train.steps 1 \
            --parallel.zero $zero >log 2>&1
        before=$(sed -n 's/^\([0-9]*\) allocations$/\1/p' log)
        PLAIT_FAIL=1:0 "$MPIEXEC" -n 3 "$PLAIT_FAILING" train "${common[@]}" --output whole$zero --parallel.zero $zero >log 2>&1
        count=$(sed -n 's/^\([0-9]*\) allocations$/\1/p' log)
        [ "$count" -gt "$before" ]
        RANDOM=$((7 + zero))
        for i in $(seq 4); do
            rm -rf out
            status=0
            local begin=$SECONDS
            PLAIT_FAIL="1:$((before / 2 + RANDOM % (count - before / 2))) 2:$((before / 2 + RANDOM % (count - before / 2)))" \
                timeout -k 1 60 "$MPIEXEC" -n 3 "$PLAIT_FAILING" train "${common[@]}" --output out --parallel.zero $zero \
                >log 2>&1 || status=$?
            [ $((SECONDS - begin)) -le 10 ] || { echo "$((SECONDS - begin)) s"; cat log; return 1; }
            [ $status != 0 ] || continue # both can do without
            grep -q 'out of memory' log && ! grep -qi 'segmentation' log || { echo "status $status"; cat log; return 1; }
            tried=$((tried + 1))
        done
    done
    [ $tried -gt 2 ]
}

@test "a program of another build" {
    cp "$PLAIT" other
    printf 'x' >>other
    ends 2 'differ' "$MPIEXEC" -n 1 "$PLAIT" train "${common[@]}" --output out : -n 1 ./other train "${common[@]}" --output out
    grep -q 'the program (plait ' log
    [ ! -e out ]
}

@test "a file that one process cannot write" {
    wrapper
    # For what else MPICH and OpenMPI share is in files of some MiB.
    export UCX_TLS=sysv,self OMPI_MCA_btl=tcp,self
    "$MPIEXEC" -n 3 "$PLAIT" train "${common[@]}" --output a --method lora --train.steps 2 >log 2>&1
    for background in true false; do
        for process in 0 1 2; do
            rm -rf out
            cp -r a out
            ends 1 'File too large' "$MPIEXEC" -n 3 ./only.sh $process 'trap "" XFSZ; ulimit -f 16' "$PLAIT" train \
                "${common[@]}" --output out --method lora --checkpoint.background $background
            [ $process = 0 ] || grep -q "process $process of 3: out/checkpoints/step-00000004.tmp/" log
            [ "$(ls out/checkpoints)" = step-00000002 ]
        done
    done
    "$MPIEXEC" -n 3 "$PLAIT" train "${common[@]}" --output out --method lora >log 2>&1
    grep -q 'going on from step 2 of 6' log
}

@test "memory that one process does not get" {
    ! ldd "$PLAIT" | grep -q libasan || skip "AddressSanitizer reserves more than any limit"
    wrapper
    # More than the program needs to begin, and less than the run.
    ends 1 'process 1 of 2: ' "$MPIEXEC" -n 2 ./only.sh 1 'ulimit -v 700000' "$PLAIT" train "${common[@]}" --output out \
        --data.sequence_length 512 --train.micro_batch 64 --train.steps 1
}

@test "a damaged checkpoint is told once, whoever meets the damage" {
    "$MPIEXEC" -n 3 "$PLAIT" train "${common[@]}" --output a --parallel.zero 3 >log 2>&1
    size=$(stat -c %s a/checkpoints/step-00000006/optimizer.safetensors)
    for place in $((size / 2)) $((size * 3 / 4)) $((size - 30)); do
        rm -rf out
        cp -r a out
        printf '\x55' | dd of=out/checkpoints/step-00000006/optimizer.safetensors bs=1 seek=$place conv=notrunc status=none
        for ranks in 1 2 3; do
            ends 2 'out/checkpoints/step-00000006/optimizer.safetensors: is damaged' "$MPIEXEC" -n $ranks "$PLAIT" train \
                "${common[@]}" --output out --parallel.zero $ranks --train.steps 8
            grep -q 'remove it to go on from step 4' log
        done
    done
}

@test "numbers that are not finite end all processes, and are told once" {
    for zero in 0 1 2 3; do
        rm -rf out
        ends 1 'NaN or infinity first appears in unit' "$MPIEXEC" -n 3 "$PLAIT" train "${common[@]}" --output out \
            --parallel.zero $zero --optimizer.lr 1e30 --scheduler.name constant
        grep -q 'no weight was changed' log
        [ ! -e out/model.safetensors ]
    done
}

@test "numbers that are not finite in one process alone" {
    # The last position's row is as large as can be, and one row of the data is long enough to come there.
    mkdir gpt2
    cp "$PLAIT_ROOT"/tests/golden/models/gpt2/{config.json,model.safetensors} gpt2/
    local header begin
    header=$(od -An -t u8 -N 8 gpt2/model.safetensors)
    begin=$(grep -ao '"transformer.wpe.weight":{[^}]*}' gpt2/model.safetensors | sed 's/.*offsets":\[\([0-9]*\),.*/\1/')
    for i in $(seq 40); do printf '\377\377\177\177'; done |
        dd of=gpt2/model.safetensors bs=1 seek=$((8 + header + begin + 31 * 160)) conv=notrunc status=none
    for long in 0 1 2; do
        rm -rf out
        for i in 0 1 2; do
            [ $i = $long ] && n=32 || n=8
            echo "{\"input_ids\": [$(seq -s, 3 $((n + 2)))]}"
        done >rows.jsonl
        for zero in 0 3; do
            ends 1 'NaN or infinity first appears in unit' "$MPIEXEC" -n 3 "$PLAIT" train --model gpt2 --data rows.jsonl \
                --data.shuffle false --data.sequence_length 32 --train.micro_batch 1 --threads 1 --train.steps 1 \
                --output out --parallel.zero $zero
            [ ! -e out/model.safetensors ]
        done
    done
}
