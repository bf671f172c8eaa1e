#!/usr/bin/env bats
# How processes are started, stopped for a while, and told to end: by --ranks, and by mpiexec itself.

setup() {
    cd "$BATS_TEST_TMPDIR"
    common=(--model "$PLAIT_ROOT/demo/stories260K" --data "$PLAIT_ROOT/demo/shakespeare-unseen.txt" --threads 1
        --data.sequence_length 32 --train.micro_batch 2)
    long=("${common[@]}" --train.steps 100000 --checkpoint.every 0)
}

# refused TEXT COMMAND...: status 2 and one line of plait's, with TEXT. OpenMPI's mpiexec has more to say.
refused() {
    local text=$1
    shift
    run "$@"
    [ "$status" = 2 ] || { echo "exit status $status: $output"; return 1; }
    [ "$(grep -c plait <<<"$output")" = 1 ] && [[ "$output" == *"plait train: "*"$text"* ]] || { echo "$output"; return 1; }
    [ ! -e out ]
}

await() {
    local i
    for i in $(seq 400); do "$@" && return; sleep 0.02; done
    return 1
}

@test "numbers of processes that cannot be" {
    refused "--ranks is 0; it must be from 1 to" "$PLAIT" train "${common[@]}" --ranks 0
    refused "--ranks is -3; it must be from 1 to" "$PLAIT" train "${common[@]}" --ranks -3
    refused "--ranks is '2.5'; a whole number was expected" "$PLAIT" train "${common[@]}" --ranks 2.5
    refused "--ranks is 100000, but it starts processes on this machine" "$PLAIT" train "${common[@]}" --ranks 100000
    ulimit -n 100
    refused "with 100 open files allowed mpiexec can start 17" "$PLAIT" train "${common[@]}" --ranks 18
}

@test "a grid that is not the processes" {
    refused "--parallel.dp is 2, but the run has 3 processes" "$MPIEXEC" -n 3 "$PLAIT" train "${common[@]}" \
        --parallel.dp 2
    refused "--parallel.dp is 2, but the run has 3 processes" "$PLAIT" train "${common[@]}" --ranks 3 --parallel.dp 2
    printf 'parallel:\n  dp: 2\n' >run.yaml
    refused "run.yaml:2: parallel.dp is 2, but the run has 1 process;" "$PLAIT" train run.yaml "${common[@]}"
    refused "--parallel.tp is 2, but there is no tensor parallelism yet" "$MPIEXEC" -n 2 "$PLAIT" train "${common[@]}" \
        --parallel.tp 2
    "$MPIEXEC" -n 2 "$PLAIT" train run.yaml "${common[@]}" --train.steps 1 --output two
    "$PLAIT" train two/run.yaml --ranks 2 --output again
    cmp two/model.safetensors again/model.safetensors
}

@test "more processes than processors are told of" {
    run "$PLAIT" train "${common[@]}" --ranks 3 --train.steps 1 --output out
    [ "$status" = 0 ]
    [ "$(nproc)" -ge 3 ] || [[ "$output" == *"3 processes take turns at $(nproc) processor"* ]]
}

@test "another MPI's mpiexec is told" {
    [ -z "$(ldd "$PLAIT" | grep 'libmpi.so')" ] && other=(OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0) ||
        other=(PMI_SIZE=2 PMI_RANK=0)
    refused "2 processes were started, but MPI tells this one of 1: the mpiexec is another MPI's" env "${other[@]}" \
        timeout 20 "$PLAIT" train "${common[@]}" --output out
    refused "srun must be told how they find each other, by --mpi=pmi2" env SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=0 \
        timeout 20 "$PLAIT" train "${common[@]}" --output out
    run env SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=1 timeout 20 "$PLAIT" train "${common[@]}" --output out
    [ -z "$output" ] # the first one tells it
}

@test "what a terminal stops is stopped in all processes, and goes on in all" {
    "$PLAIT" train "${long[@]}" --ranks 2 --output out >log 2>&1 &
    launcher=$!
    await test -s out/metrics.jsonl
    kill -TSTP $launcher
    await grep -q '^State:.T' /proc/$launcher/status
    before=$(wc -l <out/metrics.jsonl)
    sleep 0.5
    [ "$(wc -l <out/metrics.jsonl)" = "$before" ]
    kill -CONT $launcher
    goes_on() { [ "$(wc -l <out/metrics.jsonl)" -gt "$before" ]; }
    await goes_on
    kill -TERM $launcher
    status=0
    wait $launcher || status=$?
    [ $status = 143 ]
}

@test "a signal to mpiexec itself ends the run with a checkpoint, and with a status that says so" {
    for signal in TERM INT; do
        rm -rf out
        "$MPIEXEC" -n 2 "$PLAIT" train "${long[@]}" --output out >log 2>&1 &
        mpiexec=$!
        await test -s out/metrics.jsonl
        kill -$signal $mpiexec
        status=0
        wait $mpiexec || status=$?
        [ $status != 0 ] || { cat log; return 1; }
        [ -d out/checkpoints/step-* ] || { cat log; return 1; }
        [ "$(grep -c 'stopped after step' log)" = 1 ]
        ! grep -i 'abort(' log
    done
}
