#!/usr/bin/env bats
# Validation, early stop, the best result, epochs, several files with weights.

setup() {
    cd "$BATS_TEST_TMPDIR"
    export OMP_WAIT_POLICY=passive
    small=(--model "$PLAIT_ROOT/demo/stories260K" --data.sequence_length 32 --train.micro_batch 4 --threads 1
        --method lora)
    unseen=$PLAIT_ROOT/demo/shakespeare-unseen.txt
    head -c 12000 "$unseen" >plays.txt
    tail -c 4000 "$unseen" >held.txt
}

train() {
    "$PLAIT" train "${small[@]}" "$@" 2>log || { cat log; return 1; }
}
# loss ADAPTER DATA: what plait eval says.
loss() {
    "$PLAIT" eval --model "$PLAIT_ROOT/demo/stories260K" --adapter "$1" --data "$2" --data.sequence_length 32 \
        --threads 1 --json true 2>/dev/null | sed -n 's/.*"loss": \([0-9.]*\),.*/\1/p'
}
near() {
    awk -v a="$1" -v b="$2" 'BEGIN { d = a - b; exit !(b > 0 && d < 1e-5 * b && d > -1e-5 * b) }' ||
        { echo "$1, not $2"; return 1; }
}

@test "validation is what eval says of the result" {
    train --data plays.txt --data.validation held.txt --train.steps 12 --train.eval_every 4 --output out
    grep -q '^the first step begins after [0-9.]* s (' log
    [ "$(grep -c '"val_loss"' out/metrics.jsonl)" = 3 ]
    near "$(tail -n 1 out/metrics.jsonl | sed 's/.*"val_loss":\([0-9.]*\).*/\1/')" "$(loss out held.txt)"
}

@test "a split is kept out of the training, and is no file's end" {
    train --data plays.txt --data.validation_split 0.25 --train.epochs 1 --output out
    rows=$("$PLAIT" plan "${small[@]}" --data plays.txt --train.epochs 1 --json true 2>/dev/null |
        sed -n 's/.*"rows": \([0-9]*\),.*/\1/p')
    steps=$(wc -l <out/metrics.jsonl)
    [ $((steps * 4)) -lt $((rows * 9 / 10)) ]
    [ $((steps * 4)) -gt $((rows * 6 / 10)) ]
    tail -n 1 out/metrics.jsonl | grep -q '"val_loss"'
}

@test "it stops when validation gets no better, and the result is the best" {
    # A learning rate that destroys: the first validation is the best.
    train --data plays.txt --data.validation held.txt --train.steps 60 --train.eval_every 2 --train.early_stop 2 \
        --checkpoint.best true --optimizer.lr 3 --scheduler.name linear --scheduler.warmup_steps 30 --output out
    grep -q 'stopped after step' log
    [ "$(wc -l <out/metrics.jsonl)" -lt 60 ]
    best=$(sed -n 's/.*"val_loss":\([0-9.]*\).*/\1/p' out/metrics.jsonl | sort -g | head -n 1)
    near "$(loss out held.txt)" "$best"
    # The same command changes nothing.
    cp out/adapter_model.safetensors before
    train --data plays.txt --data.validation held.txt --train.steps 60 --train.eval_every 2 --train.early_stop 2 \
        --checkpoint.best true --optimizer.lr 3 --scheduler.name linear --scheduler.warmup_steps 30 --output out
    cmp before out/adapter_model.safetensors
}

@test "an epoch takes every row once" {
    train --data plays.txt --train.epochs 2 --output out
    tokens=$(sed 's/.*"tokens":\([0-9]*\).*/\1/' out/metrics.jsonl | awk '{ n += $1 } END { print n }')
    targets=$("$PLAIT" eval --model "$PLAIT_ROOT/demo/stories260K" --data plays.txt --data.sequence_length 32 --json true \
        --threads 1 2>/dev/null | sed -n 's/.*"targets": \([0-9]*\),.*/\1/p')
    [ "$tokens" = $((2 * targets)) ]
}

@test "weights decide how often a file is drawn from" {
    # Rows of 8 and of 4 targets: the tokens of a step tell which file its rows came from.
    for i in 1 2 3 4 5; do echo '{"input_ids": [1, 2, 3, 4, 5, 6, 7, 8, 9]}'; done >a.jsonl
    for i in 1 2 3 4 5 6 7 8 9; do echo '{"input_ids": [1, 2, 3, 4, 5]}'; done >b.jsonl
    train --data a.jsonl --data b.jsonl --data.weights 3,1 --train.steps 100 --output out
    # 400 rows, 300 from a: 300 * 8 + 100 * 4.
    sed 's/.*"tokens":\([0-9]*\).*/\1/' out/metrics.jsonl |
        awk '{ n += $1 } END { print n; exit !(n > 2800 * 0.97 && n < 2800 * 1.03) }'
}

@test "broken data is told by file and line" {
    printf '{"text": "one"}\n{"text": \n{"text": "three"}\n' >broken.jsonl
    "$PLAIT" train "${small[@]}" --data broken.jsonl --train.steps 1 --output out 2>log && return 1
    grep -q '^plait train: broken.jsonl:2: ' log
    [ ! -e out ]
}
