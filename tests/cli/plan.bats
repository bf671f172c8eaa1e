#!/usr/bin/env bats
# plait plan is the run: the same bytes by tag.

setup() {
    cd "$BATS_TEST_TMPDIR"
    model=$PLAIT_ROOT/demo/stories260K
    export OMP_WAIT_POLICY=passive
    # Questions and answers of many lengths, most of them cut or short.
    awk 'BEGIN { srand(3); for (i = 0; i < 60; i++) {
        q = "Tom has " i " apples."; a = "He has " i + 1 ".";
        for (n = int(rand() * 12); n > 0; n--) { q = q " He buys " n " more apples."; a = a " " i " + " n " = " i + n "." }
        printf "{\"question\": \"%s\", \"answer\": \"%s\"}\n", q, a } }' >qa.jsonl
}

# agree DATA METHOD PRECISION RECOMPUTE [MORE]: the plan's bytes are the run's, and the process keeps within.
agree() {
    local data=$1 method=$2 precision=$3 recompute=$4
    shift 4
    local all=(--model "$model" --data "$data" --data.sequence_length 96 --train.micro_batch 3 --method "$method"
        --precision "$precision" --memory.recompute "$recompute" --train.steps 4 --threads 2 "$@")
    rm -rf out
    "$PLAIT" plan "${all[@]}" --json true 2>errors | tr -d ' \n' | sed 's/.*"memory_bytes":{\([^}]*\)}.*/\1/' >planned
    "$PLAIT" train "${all[@]}" --output out 2>>errors || { cat errors; return 1; }
    tail -n 1 out/metrics.jsonl | sed 's/.*"memory_bytes":{\([^}]*\)}.*/\1/' >real
    echo >>planned
    grep -q '"weights":[1-9]' real
    cmp planned real || { echo "$data $method $precision $recompute"; cat planned real; return 1; }
}

for_each_recompute() {
    local recompute
    for recompute in none full 2; do agree "$1" "$2" "$3" $recompute; done
}

@test "text: LoRA in f32" { for_each_recompute "$PLAIT_ROOT/demo/shakespeare-unseen.txt" lora f32; }
@test "text: LoRA in bf16" { for_each_recompute "$PLAIT_ROOT/demo/shakespeare-unseen.txt" lora bf16; }
@test "text: full in f32" { for_each_recompute "$PLAIT_ROOT/demo/shakespeare-unseen.txt" full f32; }
@test "text: full in bf16" { for_each_recompute "$PLAIT_ROOT/demo/shakespeare-unseen.txt" full bf16; }
@test "questions: LoRA in f32" { for_each_recompute qa.jsonl lora f32; }
@test "questions: LoRA in bf16" { for_each_recompute qa.jsonl lora bf16; }
@test "questions: full in f32" { for_each_recompute qa.jsonl full f32; }
@test "questions: full in bf16" { for_each_recompute qa.jsonl full bf16; }

@test "with validation, accumulation, SGD, dropout" {
    agree qa.jsonl full f32 none --data.validation_split 0.2 --train.eval_every 2 --train.accumulation 2
    agree qa.jsonl full f32 none --optimizer.name sgd --optimizer.momentum 0.9
    agree qa.jsonl lora f32 none --lora.dropout 0.1 --lora.dora true
}

@test "more tokens never take less memory" {
    # Else a run, which is planned for its largest batch, could stop at a smaller one.
    cat >config.json <<'END'
{"model_type": "llama", "vocab_size": 100000, "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2,
 "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 4096, "tie_word_embeddings": true}
END
    for way in "full bf16" "lora bf16" "lora f32"; do
        read -r method precision <<<"$way"
        before=0
        for length in 2 5 7 8 9 15 16 17 31 33 100 150 190 192 193 210 300 383 384 385 700 2048 2049 2080; do
            work=$("$PLAIT" plan --from-scratch config.json --data.sequence_length $length --train.micro_batch 1 \
                --method $method --precision $precision --json true 2>/dev/null | sed -n 's/.*"work": *\([0-9]*\).*/\1/p')
            [ "$work" -ge "$before" ] || { echo "$way: $length tokens take $work, fewer take $before"; return 1; }
            before=$work
        done
    done
}
