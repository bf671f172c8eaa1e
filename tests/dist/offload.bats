#!/usr/bin/env bats
# States and parameters on disk, of several processes: each has a file of its own, and no bit changes.

setup() {
    cd "$BATS_TEST_TMPDIR"
    awk 'BEGIN { for (i = 0; i < 40; i++)
        printf "{\"question\": \"Tom has %d apples.\", \"answer\": \"He has %d.\"}\n", i, i + 1 }' >qa.jsonl
    common=(--model "$PLAIT_ROOT/demo/stories260K" --data qa.jsonl --data.sequence_length 64 --train.micro_batch 2
        --train.steps 4 --threads 1 --checkpoint.every 2 --checkpoint.keep 0 --precision bf16)
    states=(--memory.offload.optimizer disk --memory.offload.buffer 20000)
    all=("${states[@]}" --memory.offload.params disk)
}

# train RANKS OUTPUT [MORE]
train() {
    local ranks=$1 output=$2
    shift 2
    "$PLAIT" train "${common[@]}" --ranks "$ranks" --output "$output" "$@" >>log 2>&1 || { cat log; return 1; }
}

same() {
    for file in $(cd "$1" && find . -name '*.safetensors' -o -name state.json); do cmp "$1/$file" "$2/$file"; done
}

numbers_of() { tr -d ' \n' <"$1" | sed "s/.*\"$2\":{\([^}]*\)}.*/\1/"; }

@test "results and checkpoints are those of a run in memory" {
    for method in full lora; do
        rm -rf whole disk?
        train 3 whole --method $method
        train 3 disk0 --method $method "${states[@]}"
        train 3 disk2 --method $method "${states[@]}" --parallel.zero 2
        train 3 disk3 --method $method "${all[@]}" --parallel.zero 3
        for n in 0 2 3; do same whole disk$n; done
        [ -z "$(find . -name '*offload*')" ]
    done
    rm -rf whole
    train 4 whole --method full
    train 4 hybrid --method full "${all[@]}" --parallel.zero 3 --parallel.shard_size 2
    same whole hybrid
}

@test "a run goes on with other places, and other numbers of processes" {
    train 2 whole --parallel.zero 3 "${all[@]}"
    for n in 1 2; do
        rm -rf part
        cp -r whole part
        rm -r part/checkpoints/step-00000004 part/model.safetensors
        train $n part --parallel.zero 1
        [ $n = 1 ] || same whole part
    done
}

@test "the plan is what each process has on disk" {
    more=("${all[@]}" --parallel.zero 3)
    "$PLAIT" plan "${common[@]}" "${more[@]}" --ranks 3 --json true >planned 2>>log
    train 3 out "${more[@]}"
    tail -n 1 out/metrics.jsonl >real
    [ "$(numbers_of planned memory_bytes)" = "$(numbers_of real memory_bytes)" ]
    [ "$(numbers_of planned disk_bytes | sed 's/"offloaded":[1-9][0-9]*,//')" = "$(numbers_of real disk_bytes)" ]
}

@test "several processes have parameters on disk with ZeRO-3 only; a mistake is told once" {
    run "$PLAIT" train "${common[@]}" --ranks 2 --output out "${all[@]}" --parallel.zero 2
    [ "$status" = 2 ]
    [ "$(grep -c 'params is disk, but --parallel.zero is 2' <<<"$output")" = 1 ]
    run "$PLAIT" train "${common[@]}" --ranks 2 --output out "${states[@]}" --memory.offload.path nowhere
    [ "$status" = 2 ]
    [ "$(grep -c 'nowhere, and there is no such folder' <<<"$output")" = 1 ]
}

@test "every method and precision by 3 and by 8 processes, and the plan of each" {
    for ranks in 3 8; do
        for method in full lora dora; do
            for precision in f32 bf16; do
                more=(--method full --precision $precision --train.steps 2)
                [ $method = full ] || more=(--method lora --precision $precision --train.steps 2)
                [ $method != dora ] || more+=(--lora.dora true)
                rm -rf whole disk
                train $ranks whole "${more[@]}"
                for way in $([ $ranks = 8 ] || echo states params) all; do
                    rm -rf disk
                    case $way in
                    states) flags=("${states[@]}" --parallel.zero 2) ;;
                    params) flags=(--memory.offload.params disk --parallel.zero 3) ;;
                    all) flags=("${all[@]}" --parallel.zero 3) ;;
                    esac
                    train $ranks disk "${more[@]}" "${flags[@]}"
                    same whole disk
                    [ $way = all ] || continue
                    "$PLAIT" plan "${common[@]}" "${more[@]}" "${flags[@]}" --ranks $ranks --json true >planned 2>>log
                    tail -n 1 disk/metrics.jsonl >real
                    [ "$(numbers_of planned memory_bytes)" = "$(numbers_of real memory_bytes)" ]
                    [ "$(numbers_of planned disk_bytes | sed 's/"offloaded":[1-9][0-9]*,//')" = \
                        "$(numbers_of real disk_bytes)" ]
                done
            done
        done
    done
}

@test "killed while a checkpoint is written in the background, a run on disk goes on to the same bits" {
    local long=("${all[@]}" --parallel.zero 3 --train.steps 12 --checkpoint.every 1 --checkpoint.keep 2)
    local kills=0 writing=0 i tries pid job
    train 2 whole "${long[@]}"
    for i in $(seq 12); do
        [ $writing -lt 2 ] || [ $kills -lt 3 ] || break
        rm -rf out
        "$PLAIT" train "${common[@]}" --ranks 2 --output out "${long[@]}" >>log 2>&1 &
        job=$!
        for tries in $(seq 2000); do
            set -- out/checkpoints/step-*.tmp
            [ -d "$1" ] && [[ "$1" > out/checkpoints/step-0000000$((i % 9)) ]] && break
            kill -0 $job 2>/dev/null || break
        done
        # One process of the two, in turn; the other ends by itself.
        for pid in $(pgrep -x plait); do
            [ "$(readlink /proc/$pid/cwd)" = "$PWD" ] || continue
            tr '\0' '\n' </proc/$pid/environ 2>/dev/null | grep -qE "^(PMI_RANK|OMPI_COMM_WORLD_RANK)=$((i % 2))$" && kill -9 $pid
        done
        wait $job || kills=$((kills + 1))
        ! ls -d out/checkpoints/*.tmp >/dev/null 2>&1 || writing=$((writing + 1))
        train 2 out "${long[@]}"
        same whole out
    done
    echo "# $kills runs killed, $writing of them in a checkpoint's writing" >&3
    [ $kills -ge 3 ]
    [ $writing -ge 1 ]
}
