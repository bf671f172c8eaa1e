#!/usr/bin/env bats
# The process keeps within the plan and 64 MiB, whatever it does. The model is large enough for each thing that must not
# be in memory twice to be more than those: 26 million parameters, in many blocks whose buffers fill no whole number of
# huge pages. Later tests use the models that earlier ones made.

setup_file() {
    cd "$BATS_FILE_TMPDIR"
    mkdir wide
    cp "$PLAIT_ROOT"/demo/stories260K/tokenizer*.json wide
    cat >wide/config.json <<'END'
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 512, "hidden_size": 288,
 "intermediate_size": 864, "num_hidden_layers": 24, "num_attention_heads": 4, "num_key_value_heads": 4,
 "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "tie_word_embeddings": true, "hidden_act": "silu",
 "bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.02, "rope_theta": 10000.0, "torch_dtype": "float32"}
END
    head -n 40 "$PLAIT_ROOT/demo/shakespeare-unseen.txt" >text.txt
}

setup() {
    [ -x /usr/bin/time ] || skip "no /usr/bin/time"
    ! ldd "$PLAIT" | grep -q libasan || skip "AddressSanitizer's own memory would count"
    cd "$BATS_FILE_TMPDIR"
    export OMP_WAIT_POLICY=passive
}

# measured ARGUMENTS: runs plait; its result goes to the file result, and $resident becomes the most bytes it had.
measured() {
    /usr/bin/time -q -f %M -o kib "$PLAIT" "$@" >result 2>errors || { cat errors; return 1; }
    resident=$(($(tail -n 1 kib) * 1024))
}

# within BYTES
within() {
    echo "resident $((resident / 1024)) KiB, planned $(($1 / 1024)) KiB"
    [ "$resident" -le $(($1 + 67108864)) ]
}

# train OUTPUT ARGUMENTS: trains and compares with the bytes that the run itself counted.
train() {
    local output=$1
    shift
    measured train --data text.txt --data.sequence_length 64 --train.micro_batch 1 --threads 2 --output "$output" "$@"
    within "$(tail -n 1 "$output/metrics.jsonl" | sed 's/.*"peak_bytes":\([0-9]*\),.*/\1/')"
}

# A bound says nothing unless what it is to keep out is larger.
larger_than_slack() { [ "$(stat -c %s "$1")" -gt 67108864 ]; }

@test "a small model with large batches" {
    for precision in f32 bf16; do
        rm -rf small
        measured train --model "$PLAIT_ROOT/demo/stories260K" --data "$PLAIT_ROOT/demo/shakespeare.txt" --method full \
            --data.sequence_length 256 --train.micro_batch 16 --train.steps 3 --threads 2 --precision $precision \
            --output small
        within "$(tail -n 1 small/metrics.jsonl | sed 's/.*"peak_bytes":\([0-9]*\),.*/\1/')"
    done
}

# Every number of tokens needs products of its own shapes, and the code that is made for them must not pile up.
@test "a small model with rows of many lengths" {
    awk 'BEGIN { for (i = 20; i < 140; i++) {
        printf "{\"input_ids\": [%d", i; for (n = 1; n < i; n++) printf ", %d", (i * n) % 500; print "]}" } }' >rows.jsonl
    for precision in f32 bf16; do
        rm -rf small
        measured train --model "$PLAIT_ROOT/demo/stories260K" --data rows.jsonl --method full --train.micro_batch 1 \
            --train.epochs 2 --threads 2 --precision $precision --output small
        within "$(tail -n 1 small/metrics.jsonl | sed 's/.*"peak_bytes":\([0-9]*\),.*/\1/')"
    done
}

@test "from scratch, a checkpoint, the result; and going on from a checkpoint" {
    train full --from-scratch wide --method full --precision f32 --train.steps 2 --checkpoint.every 1
    larger_than_slack full/model.safetensors
    larger_than_slack full/checkpoints/step-00000002/optimizer.safetensors
    cp full/model.safetensors uninterrupted.safetensors
    rm -r full/checkpoints/step-00000002
    train full --from-scratch wide --method full --precision f32 --train.steps 2 --checkpoint.every 1
    grep -q 'going on from step 1' errors
    cmp full/model.safetensors uninterrupted.safetensors
    rm -r full/checkpoints uninterrupted.safetensors
}

@test "full in bf16, validation, and the best weights as the result" {
    train best --model full --method full --precision bf16 --train.steps 2 --data.validation_split 0.2 \
        --train.eval_every 1 --checkpoint.best true --scheduler.name constant_with_warmup --scheduler.warmup_steps 2 \
        --optimizer.lr 2
    grep -q "the result is that of step 1" errors
    rm -r best
}

@test "LoRA and DoRA on a base in another precision, and recomputation" {
    train lora --model full --method lora --precision bf16 --train.steps 2
    rm -r lora
    train lora --model full --method lora --precision f32 --train.steps 2 --memory.recompute full
    rm -r lora
    train lora --model full --method lora --precision bf16 --train.steps 2 --lora.dora true --lora.init pissa
}

@test "what is on disk is not in memory" {
    train memory --model full --method full --precision bf16 --train.steps 2
    before=$resident
    train disk --model full --method full --precision bf16 --train.steps 2 --memory.offload.optimizer disk \
        --memory.offload.params disk --memory.offload.buffer 4MiB
    cmp memory/model.safetensors disk/model.safetensors
    # Moments, bf16 weights and what these lack of f32 are 12 bytes a parameter, of which the file has 4.
    [ $((before - resident)) -gt $((3 * $(stat -c %s full/model.safetensors) * 9 / 10)) ] ||
        { echo "$before bytes in memory, $resident with offload"; return 1; }
    rm -r memory disk
}

@test "eval, with an adapter and without" {
    for precision in f32 bf16; do
        measured eval --model full --data text.txt --data.sequence_length 64 --precision $precision --json true
        within "$(sed -n 's/.*"peak_bytes": \([0-9]*\).*/\1/p' result)"
        measured eval --model full --adapter lora --data text.txt --data.sequence_length 64 --precision $precision \
            --json true
        within "$(sed -n 's/.*"peak_bytes": \([0-9]*\).*/\1/p' result)"
    done
}

@test "generate needs the weights once, merge one tensor at a time" {
    weights=$(stat -c %s full/model.safetensors)
    measured generate --model full --prompt "Once" --max-tokens 4 --precision f32
    within "$weights"
    measured generate --model full --prompt "Once" --max-tokens 4 --precision bf16
    within $((weights / 2))
    # So do eight texts together.
    measured generate --model full --max-tokens 4 --precision f32 --prompt a --prompt b --prompt c --prompt d \
        --prompt e --prompt f --prompt g --prompt h
    within "$weights"
    for precision in f32 bf16; do
        measured merge --model full --adapter lora --output merged --precision $precision
        within 0
    done
}
