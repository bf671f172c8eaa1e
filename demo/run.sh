#!/bin/sh
# `make demo`: a small Llama that writes children's stories learns to write plays. What it does is printed as it goes.
# demo/run.sh [OUTPUT]: everything that is written goes into the folder OUTPUT (build/demo), which is emptied first.
set -eu

demo=$(cd "$(dirname "$0")" && pwd)
plait=${PLAIT:-$demo/../build/plait}
output=${1:-$demo/../build/demo}
model=$demo/stories260K

say() {
    printf '\n\033[1m%s\033[0m\n' "$*"
}

# The command as a person would type it, and then what it prints.
run() {
    printf '$ plait'
    for word in "$@"; do
        case $word in
        *[!A-Za-z0-9_./:,=+-]*) printf " '%s'" "$word" ;;
        *) printf ' %s' "$word" ;;
        esac
    done | sed "s|$demo/|demo/|g; s|$output|build/demo|g"
    printf '\n'
    "$plait" "$@"
}

[ -t 1 ] || say() { printf '\n%s\n' "$*"; }
# Waiting threads sleep: on a busy machine a thread that spins keeps the one that it waits for from running.
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"

case $output in
*/demo) rm -rf "$output" ;;
*) [ ! -e "$output" ] || { echo "$output is there already; give another folder" >&2; exit 2; } ;;
esac

say "1. A Llama with 260 thousand parameters that was trained on children's stories goes on from 'ROMEO:'"
run generate --model "$model" --prompt ROMEO: --max-tokens 150 --temperature 0.7 --seed 7

say "2. Its loss on a scene of Shakespeare's that it will not see in training"
run eval --model "$model" --data "$demo/shakespeare-unseen.txt" --data.sequence_length 128

say "3. 120 steps of LoRA on 180 kB of Shakespeare"
run train --model "$model" --data "$demo/shakespeare.txt" --data.sequence_length 128 --method lora --lora.r 16 \
    --lora.alpha 32 --lora.targets all-linear --train.steps 120 --train.micro_batch 8 --optimizer.lr 5e-3 \
    --output "$output"

say "4. The same scene, with the adapter"
run eval --model "$model" --adapter "$output" --data "$demo/shakespeare-unseen.txt" --data.sequence_length 128

say "5. The same prompt and seed, with the adapter"
run generate --model "$model" --adapter "$output" --prompt ROMEO: --max-tokens 150 --temperature 0.7 --seed 7

say "The adapter is in build/demo, in PEFT's format; every step's numbers are in build/demo/metrics.jsonl."
