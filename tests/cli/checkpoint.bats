#!/usr/bin/env bats
# What a checkpoint is to its users: damage in any of its files is found and named, the one before is offered, a full disk
# leaves what was there, and its folder is a model or an adapter that any command takes.

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
    "$PLAIT" train --model "$model" --data "$data" --data.sequence_length 32 --train.micro_batch 2 --threads 1 \
        --train.steps 4 --checkpoint.every 2 --checkpoint.keep 0 --output "$output" "$@" 2>"$output.log"
}

# refused FILE METHOD WHAT: the damaged file is named, with what can be done.
refused() {
    local status=0
    train b --method "$2" || status=$?
    grep -qF "$folder/$1" b.log && grep -qF 'remove it to go on from step 2' b.log && [ $status = 2 ] ||
        { echo "$1, $3: exit status $status"; cat b.log; return 1; }
}

# Other bits of the byte at that place.
flip() {
    local byte
    byte=$(od -An -tu1 -j "$2" -N 1 "$1")
    printf "\\x$(printf %x $((byte ^ 4)))" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}

check_damage() {
    local file size place
    folder=b/checkpoints/step-00000004
    train a --method "$1"
    cp -r a b
    rm -f b/*.safetensors
    for file in $(ls a/checkpoints/step-00000004); do
        size=$(stat -c %s "a/checkpoints/step-00000004/$file")
        for place in 0 7 $((size / 3)) $((size / 2)) $((size - 2)); do
            flip "$folder/$file" $place
            refused "$file" "$1" "byte $place"
            cp "a/checkpoints/step-00000004/$file" $folder
        done
        for place in 0 1 $((size / 2)) $((size - 2)); do # state.json ends in a newline
            truncate -s $place "$folder/$file"
            refused "$file" "$1" "$place of $size bytes"
            cp "a/checkpoints/step-00000004/$file" $folder
        done
        rm "$folder/$file"
        refused "$file" "$1" removed
        cp "a/checkpoints/step-00000004/$file" $folder
    done
    rm -r $folder
    train b --method "$1"
    grep -q 'going on from step 2 of 4' b.log
    cmp a/*.safetensors b/*.safetensors
}

@test "any damage to any file is found: full" {
    check_damage full
}
@test "any damage to any file is found: LoRA" {
    check_damage lora
}

@test "two tensors that were swapped are found" {
    train a --method full
    rm a/model.safetensors
    # Rows of 32 bytes of one tensor, exchanged: the same bytes in another order.
    file=a/checkpoints/step-00000004/optimizer.safetensors
    size=$(stat -c %s $file)
    dd if=$file of=one bs=64 skip=$((size / 128)) count=1 status=none
    dd if=$file of=two bs=64 skip=$((size / 128 + 1)) count=1 status=none
    dd if=two of=$file bs=64 seek=$((size / 128)) conv=notrunc status=none
    dd if=one of=$file bs=64 seek=$((size / 128 + 1)) conv=notrunc status=none
    ! train a --method full
    grep -qF "$file: is damaged" a.log
}

@test "a checkpoint in the background has the bytes of one that is waited for" {
    for method in full lora; do
        for precision in f32 bf16; do
            rm -rf a b
            train a --method $method --precision $precision --checkpoint.background true
            train b --method $method --precision $precision --checkpoint.background false
            diff -r a/checkpoints b/checkpoints
            rm -rf c
            train c --method $method --precision $precision --memory.offload.optimizer disk
            diff -r a/checkpoints c/checkpoints
            cmp a/*model.safetensors b/*model.safetensors
        done
    done
}

@test "a folder that lets nothing be written is told, and the run ends" {
    [ "$(id -u)" != 0 ] || skip "root writes everywhere"
    train a --method lora --train.steps 2
    chmod a-w a/checkpoints
    ! train a --method lora
    chmod u+w a/checkpoints
    grep -q 'a/checkpoints/step-00000004.tmp: ' a.log
}

@test "a checkpoint that takes longer than a step holds what was there when it began" {
    # 13 million parameters, so that 160 MB are written while a step of five tokens wants to change them.
    cat >config.json <<'JSON'
{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 8192, "hidden_size": 384,
 "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 6, "num_key_value_heads": 6,
 "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": false}
JSON
    for i in 1 2 3; do echo "{\"input_ids\": [$i, 2, 3, 4, $i]}"; done >rows.jsonl
    for background in true false; do
        "$PLAIT" train --from_scratch config.json --data rows.jsonl --method full --train.micro_batch 1 --threads 1 \
            --train.steps 3 --checkpoint.every 1 --checkpoint.keep 0 --checkpoint.background $background \
            --output $background 2>log
    done
    diff -r true/checkpoints false/checkpoints
}

@test "a disk that can only be read is told" {
    train a --method lora --train.steps 2
    mkdir disk
    mount -t tmpfs none disk 2>/dev/null || skip "no right to mount a disk"
    cp -r a disk/b
    mount -o remount,ro disk
    status=0
    "$PLAIT" train --model "$model" --data "$data" --data.sequence_length 32 --train.micro_batch 2 --threads 1 \
        --train.steps 4 --method lora --output disk/b 2>errors || status=$?
    umount disk
    cat errors
    [ $status = 1 ]
    grep -q 'disk/b: cannot be written: Read-only file system' errors
}

@test "a file size that the system refuses ends the run, and the checkpoint before stays" {
    train a --method lora --train.steps 2
    for background in true false; do
        rm -rf b
        cp -r a b
        # Blocks of 1 KiB: metrics and states fit, moments do not.
        status=0
        (trap '' XFSZ; ulimit -f 16; train b --method lora --train.steps 8 --checkpoint.background $background) || status=$?
        [ $status = 1 ] || { echo "exit status $status"; cat b.log; return 1; }
        grep -q 'File too large' b.log
        [ "$(ls b/checkpoints)" = step-00000002 ]
    done
    train b --method lora
    grep -q 'going on from step 2 of 4' b.log
}

@test "a checkpoint's folder is a model, or an adapter" {
    train a --method full --precision bf16
    "$PLAIT" inspect a/checkpoints/step-00000004 >shown
    grep -q 'a checkpoint after step 4, [0-9]* trained tokens' shown
    grep -q 'a llama model of 260032 parameters' shown
    "$PLAIT" eval --model a/checkpoints/step-00000004 --data "$data" --data.sequence_length 32 --threads 1 >evaluated
    grep -qi loss evaluated
    "$PLAIT" generate --model a/checkpoints/step-00000004 --prompt 'Once' --max_tokens 3 --threads 1 >written
    [ -s written ]
    train c --method lora
    "$PLAIT" inspect c/checkpoints/step-00000004 >shown
    grep -q 'a LoRA adapter' shown
    "$PLAIT" eval --model "$model" --adapter c/checkpoints/step-00000004 --data "$data" --data.sequence_length 32 \
        --threads 1 >evaluated
    grep -qi loss evaluated
    "$PLAIT" eval --model "$model" --adapter c --data "$data" --data.sequence_length 32 --threads 1 >again
    diff <(grep -i loss evaluated) <(grep -i loss again)
    # It says nothing of how many processes made it, or what was sharded.
    "$PLAIT" inspect a/checkpoints/step-00000004 --json true | grep -qE '"(rank|zero|processes)' && return 1
    return 0
}
