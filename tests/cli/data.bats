#!/usr/bin/env bats
# Which template writes the data, files with weights beside a validation file, and a start from scratch.

setup() {
    cd "$BATS_TEST_TMPDIR"
    export OMP_WAIT_POLICY=passive
    stories=$PLAIT_ROOT/demo/stories260K
    printf '{"question": "Hi", "answer": "Hello you"}\n' >qa.jsonl
    printf '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello you"}]}\n' >chat.jsonl
    printf 'Once upon a time\n' >text.txt
    cat >turns.jinja <<'END'
{{ bos_token }}{% for m in messages %}{{ m.role }}:{{ '\n' }}{{ m.content }}{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{{ '\n' }}{% endfor %}{% if add_generation_prompt %}assistant:{{ '\n' }}{% endif %}
END
}

# shown MODEL DATA TEMPLATE: the first example, what is trained in brackets; or the error.
shown() {
    status=0
    output=$("$PLAIT" inspect --model "$1" --data "$2" --data.template "$3" 2>errors) || status=$?
    # SentencePiece begins a text with a blank, also the one behind a special token.
    output=$(sed '1,/^the first one/d; s/ *$//' <<<"$output")
    errors=$(cat errors)
}
is() {
    [ "$output" = "$1" ] || { echo "gave: $output$errors"; return 1; }
}

@test "a model without a chat template" {
    shown "$stories" qa.jsonl auto
    is $'<s> Hi\n[[Hello you</s>]]'
    shown "$stories" qa.jsonl plain
    is $'<s> Hi\n[[Hello you</s>]]'
    shown "$stories" qa.jsonl chat
    [ "$status" = 2 ]
    [[ $errors == *"qa.jsonl: is of format qa, and the model has no chat template"* ]]
    shown "$stories" chat.jsonl auto
    [ "$status" = 2 ]
    [[ $errors == *"name one with data.template"* ]]
    shown "$stories" chat.jsonl plain
    [ "$status" = 2 ]
    shown "$stories" qa.jsonl nowhere.jinja
    [ "$status" = 2 ]
    [[ $errors == *"--data.template: nowhere.jinja"* ]]
}

@test "a template of the user's own gets the model's special tokens" {
    for data in qa chat; do
        shown "$stories" $data.jsonl turns.jinja
        is $'<s> user:\nHi\nassistant:\n[[Hello you</s>]]'
        [ -z "$errors" ]
    done
    shown "$stories" text.txt turns.jinja
    is $'<s>[[ Once upon a time\n</s>]]'
    [[ $errors == "warning: a chat template is asked for, but"* ]]
}

@test "the model's own template" {
    cp -r "$stories" model
    sed 's/{{ bos_token }}/{{ bos_token }}own /' turns.jinja >model/chat_template.jinja
    shown model chat.jsonl auto
    is $'<s> own user:\nHi\nassistant:\n[[Hello you</s>]]'
    shown model qa.jsonl chat
    is $'<s> own user:\nHi\nassistant:\n[[Hello you</s>]]'
    shown model qa.jsonl auto
    is $'<s> Hi\n[[Hello you</s>]]'
    shown model chat.jsonl turns.jinja
    is $'<s> user:\nHi\nassistant:\n[[Hello you</s>]]'
    # What is asked by a template is answered by the same.
    "$PLAIT" generate --model model --chat --prompt Hi --max-tokens 3 --greedy >own 2>/dev/null
    "$PLAIT" generate --model model --greedy --max-tokens 3 --prompt $'own user:\nHi\nassistant:\n' 2>/dev/null |
        tail -n +4 >plain
    cmp own plain
}

@test "what is cut or left out is told" {
    for i in 1 2 3; do printf '{"question": "Who is it?", "answer": "It is only me, the cat."}\n'; done >long.jsonl
    printf '{"question": "Who is it, and where does it come from?", "answer": "Me."}\n' >>long.jsonl
    printf '{"question": "", "answer": ""}\n' >>long.jsonl
    "$PLAIT" eval --model "$stories" --data qa.jsonl --data long.jsonl --data.sequence_length 16 >out 2>errors
    grep -q '^warning: 4 of 6 examples are longer than data.sequence_length 16 and lost their end; 1 of them' errors
    "$PLAIT" eval --model "$stories" --data qa.jsonl --data long.jsonl --data.sequence_length 16 --data.overlong drop \
        >out 2>errors
    grep -q '^warning: 4 of 6 examples are longer than data.sequence_length 16 and were left out' errors
    "$PLAIT" eval --model "$stories" --data qa.jsonl >out 2>errors
    [ ! -s errors ]
}

@test "several files with weights, and a validation file" {
    unseen=$PLAIT_ROOT/demo/shakespeare-unseen.txt
    head -c 4000 "$unseen" >plays.txt
    tail -c 3000 "$unseen" >held.txt
    for i in 1 2 3 4 5 6 7 8; do printf '{"input_ids": [1, 2, 3, 4]}\n'; done >short.jsonl
    train=("$PLAIT" train --model "$stories" --data plays.txt --data short.jsonl --data.sequence_length 32 --threads 1
        --train.steps 20 --train.micro_batch 2 --data.validation held.txt --train.eval_every 10 --method lora)
    "${train[@]}" --data.weights 1,9 --output mostly 2>log || { cat log; return 1; }
    "${train[@]}" --data.weights 9,1 --output seldom 2>log || { cat log; return 1; }
    # The short file's rows have 3 targets, the play's 31.
    tokens() { sed 's/.*"tokens":\([0-9]*\),.*/\1/' "$1/metrics.jsonl" | awk '{ n += $1 } END { print n }'; }
    [ "$(tokens mostly)" -lt 500 ] || { tokens mostly; return 1; }
    [ "$(tokens seldom)" -gt 900 ] || { tokens seldom; return 1; }
    # Validation has a weight of its own: it is there twice, of all of its tokens.
    for run in mostly seldom; do
        [ "$(grep -c '"val_loss"' $run/metrics.jsonl)" = 2 ]
        loss=$("$PLAIT" eval --model "$stories" --adapter $run --data held.txt --data.sequence_length 32 --threads 1 \
            --json 2>/dev/null | sed -n 's/.*"loss": \([0-9.]*\),.*/\1/p')
        tail -n 1 $run/metrics.jsonl | sed 's/.*"val_loss":\([0-9.]*\).*/\1/' |
            awk -v b="$loss" '{ d = $1 - b; exit !(b > 0 && d < 1e-5 * b && d > -1e-5 * b) }'
    done
    status=0
    "${train[@]}" --data.weights 1,2,3 --output none 2>errors || status=$?
    [ "$status" = 2 ]
    grep -q 'data.weights has 3 numbers, but --data has 2 files' errors
}

@test "from scratch: a folder that writes and is evaluated by itself" {
    head -c 4000 "$PLAIT_ROOT/demo/shakespeare-unseen.txt" >plays.txt
    train=("$PLAIT" train --data plays.txt --data.sequence_length 64 --train.steps 4 --threads 1)
    "${train[@]}" --from-scratch "$stories/config.json" --output file 2>/dev/null
    "${train[@]}" --from-scratch "$stories" --output folder 2>/dev/null
    # A configuration of one's own, and another model's tokenizer.
    mkdir own
    sed 's/"num_hidden_layers": *[0-9]*/"num_hidden_layers": 2/' "$stories/config.json" >own/config.json
    "${train[@]}" --from-scratch own/config.json --model "$stories" --output small 2>/dev/null
    for run in file folder small; do
        cmp "$stories/tokenizer.json" $run/tokenizer.json
        "$PLAIT" generate --model $run --prompt Once --max-tokens 4 --threads 1 >text 2>/dev/null
        grep -q '^Once' text
        "$PLAIT" eval --model $run --data plays.txt --data.sequence_length 64 --threads 1 --json 2>/dev/null |
            sed -n 's/.*"loss": \([0-9.]*\),.*/\1/p' >$run.loss
    done
    cmp file/model.safetensors folder/model.safetensors
    "$PLAIT" inspect small --json | grep -q '"layers": 2,'
    # 512 tokens at random: a loss of about ln 512 = 6.24, and a little less after four steps.
    for run in file folder small; do awk '{ exit !($1 > 5.5 && $1 < 6.3) }' $run.loss || { cat $run.loss; return 1; }; done
}
