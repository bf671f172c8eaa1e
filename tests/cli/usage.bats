#!/usr/bin/env bats
# Help, unknown commands and flags, wrong values, run files with mistakes, init, completion.

setup() {
    cd "$BATS_TEST_TMPDIR"
}

# plait ARGUMENTS: $output is standard output, $errors standard error, $status the exit status.
plait() {
    status=0
    output=$("$PLAIT" "$@" 2>errors.txt) || status=$?
    errors=$(cat errors.txt)
}

# wrong STATUS MESSAGE ARGUMENTS: nothing on standard output, and one sentence on standard error.
wrong() {
    local expected=$1 message=$2
    shift 2
    plait "$@"
    [ "$status" = "$expected" ] || { echo "exit status $status: $errors"; return 1; }
    [ -z "$output" ] || { echo "printed: $output"; return 1; }
    [ "$errors" = "$message" ] || { echo "gave: $errors"; return 1; }
}

@test "help goes to standard output" {
    plait --help
    [ "$status" = 0 ]
    [ -z "$errors" ]
    [[ $output == "usage: plait COMMAND"* ]]
    [[ $output == *"fine-tune a model"* ]]
    plait train --help
    [ "$status" = 0 ]
    [[ $output == *"--lora.r N "* ]]
    [[ $output == *"--scheduler.name"*"warmup_stable_decay"* ]]
    [[ $output != *"--max-tokens"* ]]
    same=$output
    plait help train
    [ "$output" = "$same" ]
    plait generate --model x -h
    [[ $output == *"--max-tokens N"* ]]
    [[ $output != *"--lora.r"* ]]
}

@test "help fits 80 columns" {
    for command in init train plan generate eval merge inspect; do
        COLUMNS=80 plait $command --help
        [ "$status" = 0 ]
        [ "$(printf '%s\n' "$output" | awk 'length > 80' | wc -l)" = 0 ]
    done
}

@test "version" {
    plait --version
    [ "$status" = 0 ]
    [[ $output =~ ^plait\ [0-9]+\.[0-9]+\.[0-9]+$ ]]
}

@test "nothing at all shows help, and is no success" {
    plait
    [ "$status" = 2 ]
    [ -z "$output" ]
    [[ $errors == "usage: plait COMMAND"*"plait: no command is given" ]]
}

@test "unknown commands" {
    wrong 2 "plait: there is no command 'trian'; did you mean train?" trian
    wrong 2 "plait: there is no command 'quantise'; plait --help lists what there is" quantise
    wrong 2 "plait: there is no command 'gen'; plait --help lists what there is" help gen
}

@test "unknown flags" {
    wrong 2 "plait train: there is no flag --lora.rank; did you mean --lora.r?" train --lora.rank 4
    wrong 2 "plait train: there is no flag --modle; did you mean --model?" train --modle x
    wrong 2 "plait train: --lora_alpha is PEFT's name for it; here it is --lora.alpha" train --lora_alpha 4
    wrong 2 "plait train: --learning_rate is Hugging Face's name for it; here it is --optimizer.lr" train --learning_rate=1
    wrong 2 "plait generate: --lora.r is not taken here; it is for plait train" generate --lora.r 4
    wrong 2 "plait train: there is no flag -m; flags begin with two dashes" train -m x
}

@test "wrong values" {
    wrong 2 "plait train: --lora.r is 0; it must be from 1 to 65536" train --lora.r 0
    wrong 2 "plait train: --method is 'loar'; full or lora was expected" train --method loar
    wrong 2 "plait train: --optimizer.lr is '1e-4x'; a number was expected" train --optimizer.lr=1e-4x
    wrong 2 "plait train: --model needs a value" train --model
    wrong 2 "plait generate: --temperature is 0, which is not supported: --greedy takes the likeliest token always" \
        generate --temperature 0
    wrong 2 "plait train: --model is empty; a path was expected" train --model ""
    wrong 2 "plait train: --optimizer.betas has 1 number; 2 were expected" train --optimizer.betas 0.9
    wrong 2 "plait train: --data.shuffle is 'no'; true or false was expected" train --data.shuffle no
}

@test "what does not go together" {
    wrong 2 "plait train: --lora.r is set, but method is full; it applies with method=lora only" \
        train --model m --data d --lora.r 4
    wrong 2 "plait train: --train.steps and --train.epochs are both set; give one of them" \
        train --model m --data d --train.steps 1 --train.epochs 1
    wrong 2 "plait merge: there is nothing to merge: give --adapter DIR (a PEFT adapter)" merge --model m --output o
}

@test "a model and data are needed" {
    wrong 2 "plait train: there is no model: give --model DIR (a Hugging Face folder) or --from-scratch config.json" train
    wrong 2 "plait train: there is no data: give --data FILE (.txt, .jsonl or .json)" train --model m
    wrong 2 "plait generate: there is no model: give --model DIR (a Hugging Face folder)" generate --prompt x
}

@test "run files with mistakes" {
    printf 'model: m\nlora:\n  r: 0\n' >run.yaml
    wrong 2 "plait train: run.yaml:3: lora.r is 0; it must be from 1 to 65536" train run.yaml
    printf 'model: m\nlora:\n  rr: 4\n' >run.yaml
    wrong 2 "plait train: run.yaml:3: there is no field lora.rr; did you mean lora.r?" train run.yaml
    printf 'model: m\nmodel: n\n' >run.yaml
    wrong 2 "plait train: run.yaml:2: model is given twice; line 1 has it already" train run.yaml
    printf 'model: m\ndata: d\nlora:\n  r: 4\n' >run.yaml
    wrong 2 "plait train: run.yaml:4: lora.r is set, but method is full; it applies with method=lora only" train run.yaml
    printf 'model: [m\n' >run.yaml
    plait train run.yaml
    [ "$status" = 2 ]
    [[ $errors == "plait train: run.yaml:"*": is not valid YAML: "* ]]
    printf '{"model": "m", "lora": {"r": "x"}}' >run.json
    wrong 2 "plait train: run.json:1: lora.r is 'x'; a whole number was expected" train run.json
    wrong 2 "plait train: none.yaml: there is no such file" train none.yaml
    wrong 2 "plait train: .: is a folder; a run file was expected (--model . names a model's folder)" train .
    wrong 2 "plait train: one run file is taken, and 'b.yaml' is a second; flags begin with two dashes" \
        train a.yaml b.yaml
}

@test "flags override the file, on whichever side they are" {
    printf 'model: m\nmethod: lora\nlora:\n  r: 0x\n' >run.yaml
    wrong 2 "plait train: there is no data: give --data FILE (.txt, .jsonl or .json)" train run.yaml --lora.r 4
    wrong 2 "plait train: there is no data: give --data FILE (.txt, .jsonl or .json)" train --lora.r 4 run.yaml
}

@test "init writes a file that train reads" {
    plait init
    [ "$status" = 0 ]
    [ -z "$output" ]
    wrong 2 "plait train: there is no model: give --model DIR (a Hugging Face folder) or --from-scratch config.json" \
        train run.yaml
    wrong 2 "plait init: run.yaml is there already; give another name, or remove it" init
    plait init other.yaml --model m --method lora --lora.r 16 --lora.targets q_proj,v_proj
    [ "$status" = 0 ]
    grep -q '^  r: 16 ' other.yaml
    grep -q '^  targets: \[q_proj, v_proj\] ' other.yaml
    grep -q '^  # alpha: 8 ' other.yaml
    wrong 2 "plait train: there is no data: give --data FILE (.txt, .jsonl or .json)" train other.yaml
    wrong 1 "plait init: none/run.yaml: cannot be written: No such file or directory" init none/run.yaml
    plait init -
    [ "$status" = 0 ]
    [ "$output" = "$(cat run.yaml)" ]
}

@test "every commented line of init is a default that may be uncommented" {
    plait init - --method lora
    # Those without a default show what could be given, in capitals.
    printf '%s\n' "$output" | sed -E '/^ *# [a-z_]+: ([A-Z]|all-linear|linear\|)/d; s/^( *)# ([a-z_]+: )/\1\2/' >run.yaml
    sed -i -E '/^  (momentum|nesterov|power|lr_end|min_lr_ratio|warmup_min|cos_min|cycle_|decay_|lr_range)/d' run.yaml
    sed -i -E '/^  freeze/d' run.yaml
    [ "$(wc -l <run.yaml)" -gt 50 ]
    wrong 2 "plait train: there is no data: give --data FILE (.txt, .jsonl or .json)" train run.yaml --model m
}

@test "a full disk is told" {
    [ -w /dev/full ] || skip "no /dev/full"
    run sh -c '"$PLAIT" --help >/dev/full'
    [ "$status" = 1 ]
    [[ $output == *"could not be written to standard output"* ]]
}

@test "completion" {
    source "$PLAIT_ROOT/packaging/plait.bash"
    complete_words() {
        COMP_WORDS=("$@")
        COMP_CWORD=$(($# - 1))
        _plait || true
    }
    complete_words plait tr
    [ "${COMPREPLY[*]}" = "train" ]
    complete_words plait train --lora.al
    [ "${COMPREPLY[*]}" = "--lora.alpha --lora.alpha_pattern" ]
    complete_words plait train --method ""
    [ "${COMPREPLY[*]}" = "full lora" ]
    complete_words plait train --scheduler.name = warmup
    [ "${COMPREPLY[*]}" = "warmup_stable_decay" ]
    complete_words plait generate --lora
    [ "${COMPREPLY[*]}" = "" ]
    mkdir folder
    touch file.jsonl
    complete_words plait train --data fi
    [ "${COMPREPLY[*]}" = "file.jsonl" ]
    complete_words plait train --model fo
    [ "${COMPREPLY[*]}" = "folder" ]
}

@test "what is no model, and no weights file" {
    local stories=$PLAIT_ROOT/demo/stories260K
    wrong 2 "plait eval: --model is org/name, and there is no such folder; a model must be on this machine, as \`hf download NAME --local-dir DIR\` puts it there" \
        eval --model org/name --data x.txt
    wrong 2 "plait generate: --model is $stories/config.json, a file; the folder that holds a model's config.json was expected" \
        generate --model "$stories/config.json" --prompt hi
    wrong 2 "plait inspect: nowhere: there is no such file or folder" inspect nowhere
    echo '{"text": "x"}' >rows.jsonl
    wrong 2 "plait inspect: rows.jsonl: is no weights file; to look at data give --model DIR --data rows.jsonl" \
        inspect rows.jsonl
    echo ' [{"text": "x"}]' >rows.json
    wrong 2 "plait inspect: rows.json: is no weights file; to look at data give --model DIR --data rows.json" \
        inspect rows.json
}

@test "weights that are no numbers are named" {
    local stories=$PLAIT_ROOT/demo/stories260K
    mkdir model
    cp "$stories"/* model
    # The last four bytes of the file are a weight's.
    truncate -s -4 model/model.safetensors
    printf '\000\000\300\177' >>model/model.safetensors
    wrong 1 "plait generate: model/model.safetensors: tensor model.norm.weight: element 63 is NaN" \
        generate --model model --prompt hi
    printf 'Once upon a time' >text.txt
    wrong 1 "plait eval: model/model.safetensors: tensor model.norm.weight: element 63 is NaN" \
        eval --model model --data text.txt
}

@test "files that Git LFS did not fetch" {
    local stories=$PLAIT_ROOT/demo/stories260K name
    printf 'version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n' >pointer
    printf 'Once' >text.txt
    for name in model.safetensors tokenizer.json config.json; do
        rm -rf model
        mkdir model
        cp "$stories"/* model
        cp pointer model/$name
        wrong 2 "plait eval: model/$name: is a Git LFS pointer, not the file that it stands for; fetch that with \`git lfs pull\`" \
            eval --model model --data text.txt
    done
    cp pointer rows.jsonl
    cp pointer plays.txt
    for name in rows.jsonl plays.txt; do
        wrong 2 "plait eval: $name: is a Git LFS pointer, not the file that it stands for; fetch that with \`git lfs pull\`" \
            eval --model "$stories" --data $name
    done
}

@test "an adapter in the model's place" {
    mkdir adapter
    echo '{"peft_type": "LORA"}' >adapter/adapter_config.json
    wrong 2 "plait generate: --model is adapter, which holds an adapter; give the model that it is for, and --adapter adapter" \
        generate --model adapter --prompt hi
}

@test "inspect takes what it looks at as a path or as a flag" {
    local stories=$PLAIT_ROOT/demo/stories260K
    plait inspect "$stories"
    same=$output
    [[ $output == "$stories: a llama model of 260032 parameters"* ]]
    plait inspect --model "$stories"
    [ "$output" = "$same" ]
    printf '{"text": "Once upon a time"}\n' >rows.jsonl
    plait inspect --model "$stories" --data rows.jsonl
    same=$output
    [[ $output == "rows.jsonl: text, 1 sequences"* ]]
    plait inspect "$stories" --data rows.jsonl
    [ "$output" = "$same" ]
    wrong 2 "plait inspect: x and --model are both given; one thing is looked at at a time" inspect x --model "$stories"
}
