#!/usr/bin/env bats
# Several texts at once: what is written, in which form, and what is said of mistakes.

setup() {
    cd "$BATS_TEST_TMPDIR"
    stories=$PLAIT_ROOT/demo/stories260K
    export OMP_NUM_THREADS=1
    # A model that stops at the end of a sentence.
    cp -r "$stories" model
    for file in config generation_config; do
        [ ! -f model/$file.json ] || sed -i 's/"eos_token_id": *[0-9]*/"eos_token_id": 426/' model/$file.json
    done
}

# written ARGUMENTS: what the model writes, as lines of JSON in the file `lines`.
written() {
    "$PLAIT" generate --model model --max-tokens 40 --json true "$@" >lines 2>errors || { cat errors; return 1; }
}

# field NAME: of each line.
field() {
    sed -nE 's/.*[{,]"'"$1"'":("(\\.|[^"\\])*"|[^,}]*)[,}].*/\1/p' lines
}

# wrong MESSAGE ARGUMENTS: nothing on standard output, and one sentence on standard error.
wrong() {
    local expected=$1 status=0
    shift
    "$PLAIT" generate --model model --max-tokens 4 "$@" >output 2>errors </dev/null || status=$?
    [ "$status" = 2 ] || { echo "exit status $status"; cat errors; return 1; }
    [ ! -s output ]
    [ "$(cat errors)" = "plait generate: $expected" ] || { cat errors; return 1; }
}

prompts() {
    printf 'Once upon a time\n\nThe\nLily, who was a little girl and had a big red ball,\nHe\nOne day, a cat\r\nTom\n' >prompts.txt
}

@test "texts are those of one at a time, greedy and drawn, whatever the batch" {
    prompts
    for how in "--greedy true" "--seed 3 --temperature 0.8 --top-p 0.9"; do
        for precision in f32 bf16; do
            written --prompts prompts.txt $how --precision $precision --batch 1
            [ "$(wc -l <lines)" = 6 ]
            mv lines alone
            for batch in 2 4 8; do
                written --prompts prompts.txt $how --precision $precision --batch $batch
                cmp lines alone
            done
        done
    done
    # Each ends by itself: some with their sentence, and some with their last token.
    written --prompts prompts.txt --greedy true --max-tokens 12
    field finish_reason | sort -u >reasons
    [ "$(cat reasons)" = $'"length"\n"stop"' ] || { cat lines; return 1; }
    [ "$(field new_tokens | sort -u | wc -l)" -gt 2 ]
}

@test "as text: a heading, the prompt and what goes on from it" {
    prompts
    "$PLAIT" generate --model model --max-tokens 40 --greedy true --prompts prompts.txt >together 2>errors
    number=0
    while read -r prompt; do
        [ -n "$prompt" ] || continue
        number=$((number + 1))
        [ $number = 1 ] || echo
        echo "--- $number of 6"
        "$PLAIT" generate --model model --max-tokens 40 --greedy true --prompt "${prompt%$'\r'}" 2>/dev/null
    done <prompts.txt >alone
    [ $number = 6 ]
    diff together alone
    grep -Eq '^[0-9]+ tokens read in [0-9.]+ s, [0-9]+ written at [0-9.]+ a second$' errors
    "$PLAIT" generate --model model --max-tokens 3 --greedy true --prompt Once --prompt 'a, b' >given 2>/dev/null
    grep -q '^--- 2 of 2$' given
    grep -q '^a, b' given
}

@test "rows of JSON: prompts and messages" {
    cat >rows.jsonl <<'ROWS'
{"prompt": "Once", "id": 7}

{"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Hi"}]}
{"prompt": [{"role": "user", "content": "Hi"}]}
ROWS
    echo '{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}bot:' >turns.jinja
    written --prompts rows.jsonl --greedy true --data.template turns.jinja
    [ "$(field prompt)" = $'"Once"\nnull\nnull' ]
    field text >texts
    written --greedy true --data.template turns.jinja --chat true --prompt Hi --prompt Once
    [ "$(field text | head -n 1)" = "$(sed -n 3p texts)" ]
    [ "$(field text | tail -n 1)" != "$(sed -n 1p texts)" ]
    # An answer stands alone.
    "$PLAIT" generate --model model --prompts rows.jsonl --greedy true --max-tokens 5 --data.template turns.jinja >text \
        2>/dev/null
    ! grep -q Hi text
    echo '["prompt"]' >list.json
    echo '[{"prompt": "Once"}, {"prompt": "The"}]' >array.json
    written --prompts array.json --greedy true
    [ "$(field prompt)" = $'"Once"\n"The"' ]
}

@test "what is wrong is told with its line" {
    : >empty.txt
    printf '\n\n' >blank.txt
    : >empty.jsonl
    row() { printf '{"prompt": "Once"}\n%s\n' "$1" >rows.jsonl; }
    wrong "--prompt and --prompts are both given; put all prompts into the file, or all into --prompt" \
        --prompt a --prompts empty.txt
    wrong "empty.txt: there is no prompt in it" --prompts empty.txt
    wrong "blank.txt: there is no prompt in it" --prompts blank.txt
    wrong "empty.jsonl: there is no prompt in it" --prompts empty.jsonl
    row '{"text": "The"}'
    wrong "rows.jsonl:2: has neither prompt nor messages; one of them was expected" --prompts rows.jsonl
    row '{"prompt": "The", "messages": []}'
    wrong "rows.jsonl:2: has both prompt and messages; one of them was expected" --prompts rows.jsonl
    row '{"prompt": 3}'
    wrong "rows.jsonl:2: prompt is a whole number; a text, or an array of messages, was expected" --prompts rows.jsonl
    row '"The"'
    wrong "rows.jsonl:2: is a string; an object with prompt or messages was expected" --prompts rows.jsonl
    row '{"messages": []}'
    wrong "rows.jsonl:2: messages is empty; there is nothing to answer" --prompts rows.jsonl
    row '{"messages": [{"content": "Hi"}]}'
    wrong 'rows.jsonl:2: message 1 of messages has no role; {"role": ..., "content": ...} was expected' --prompts rows.jsonl
    row '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}]}'
    wrong "rows.jsonl:2: the last message of messages is the assistant's; a user's was expected, which the model then answers" \
        --prompts rows.jsonl
    row '{"messages": [{"role": "user", "content": "Hi"}]}'
    wrong "rows.jsonl:2: the prompt: model has no chat template; give the prompt as a text, or name one with --data.template" \
        --prompts rows.jsonl
    long=$(printf 'The cat %.0s' {1..600})
    row "{\"prompt\": \"$long\"}"
    wrong "rows.jsonl:2: the prompt has 1802 tokens; the model has positions for 512" --prompts rows.jsonl
    wrong "prompt 2 has 1802 tokens; the model has positions for 512" --prompt The --prompt "$long"
    wrong "--batch is 0; it must be from 1 to 64" --prompt The --batch 0
    "$PLAIT" generate --model model --prompts nothing.jsonl 2>errors && return 1
    grep -q 'nothing.jsonl' errors
}

@test "an adapter tells the model that it is for" {
    printf 'A cat sat on a mat.\nA dog ran after a ball.\n' >rows.txt
    "$PLAIT" train --model model --data rows.txt --method lora --train.steps 2 --optimizer.lr 0.01 --output out 2>/dev/null
    grep -q "\"base_model_name_or_path\": \"$PWD/model\"" out/adapter_config.json
    written --adapter out --prompt Once --greedy true
    mv lines named
    without() { "$PLAIT" "$@" 2>errors || { cat errors; return 1; }; }
    mkdir elsewhere
    (cd elsewhere && without generate --adapter ../out --prompt Once --greedy true --max-tokens 40 --json true) >lines
    cmp lines named
    without eval --adapter out --data rows.txt >/dev/null
    without merge --adapter out --output merged >/dev/null
    [ -f merged/config.json ]
    without plan --adapter out --data rows.txt >/dev/null
    # Training goes on from it, and the same command goes on with that.
    for steps in 1 2; do
        without train --adapter out --data rows.txt --train.steps $steps --output further >/dev/null
    done
    grep -q "^model: $PWD/model" further/run.yaml || { cat further/run.yaml; return 1; }
    # One that was trained on random weights is for none, and not for the folder that gave their tokenizer.
    without train --from-scratch model/config.json --model model --data rows.txt --method lora --train.steps 1 \
        --output random >/dev/null
    grep -q '"base_model_name_or_path": null' random/adapter_config.json
    # A name that is no folder here is told; --model comes before it.
    sed -i "s|\"$PWD/model\"|\"someone/stories\"|" out/adapter_config.json
    status=0
    "$PLAIT" generate --adapter out --prompt Once 2>errors || status=$?
    [ "$status" = 2 ]
    [ "$(cat errors)" = "plait generate: there is no model: --adapter says that it is for someone/stories, which is no \
folder here; give --model DIR" ] || { cat errors; return 1; }
    written --adapter out --prompt Once --greedy true
    cmp lines named
    sed -i 's|"someone/stories"|null|' out/adapter_config.json
    status=0
    "$PLAIT" generate --adapter out --prompt Once 2>errors || status=$?
    [ "$status" = 2 ]
    [ "$(cat errors)" = "plait generate: there is no model: give --model DIR (a Hugging Face folder)" ]
}
