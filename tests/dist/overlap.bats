#!/usr/bin/env bats
# Gradients travel while the backward pass computes. Two hosts are made of this machine: two network namespaces with a
# cable between them whose speed is set by hand. Where computing takes longer a step lasts hardly longer than computing
# alone; where the messages do, hardly longer than they do. Nothing travels during the forward pass, which is a third
# of the computing, so near where both take as long no program could do that.

setup() {
    cd "$BATS_TEST_TMPDIR"
    a=plait-a-$$ b=plait-b-$$
    [ "$(id -u)" = 0 ] || skip "only root can make network namespaces"
    command -v ip >/dev/null && command -v tc >/dev/null || skip "ip and tc (iproute2) are not installed"
    "$MPIEXEC" --version 2>&1 | grep -qi hydra || skip "the hosts are made for hydra, MPICH's mpiexec"
    ip netns add $a 2>/dev/null && ip netns add $b 2>/dev/null || skip "this root may not make network namespaces"
    ip link add cable netns $a type veth peer name cable netns $b 2>/dev/null || skip "this kernel has no veth"
    ip -n $a addr add 10.77.0.1/24 dev cable
    ip -n $b addr add 10.77.0.2/24 dev cable
    for host in $a $b; do
        ip -n $host link set lo up
        ip -n $host link set cable up
    done
    for try in $(seq 100); do # until both ends are seen to be plugged in
        ip -n $a -br link show cable | grep -q " UP " && ip -n $b -br link show cable | grep -q " UP " && break
        sleep 0.05
    done
    set_speed 1000 || skip "this kernel has no tbf, which slows a link"
    # What mpiexec takes for ssh: [options] ADDRESS COMMAND...
    cat >enter <<SH
#!/bin/bash
while [[ \$1 == -* ]]; do shift; done
[ "\$1" = 10.77.0.1 ] && host=$a || host=$b
shift
exec ip netns exec \$host bash -c "\$*"
SH
    chmod +x enter
    # As in a large model, a block has several pieces' worth of gradients (of parallel.bucket_mb), and is a small part
    # of all.
    cat >config.json <<'JSON'
{"model_type": "llama", "vocab_size": 256, "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 12,
 "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
 "tie_word_embeddings": false, "hidden_act": "silu", "bos_token_id": 1, "eos_token_id": 2}
JSON
    awk 'BEGIN { srand(1); for (i = 0; i < 64; i++) { printf "{\"input_ids\": [%d", int(rand() * 256)
        for (k = 1; k < 256; k++) printf ", %d", int(rand() * 256); print "]}" } }' >rows.jsonl
}

teardown() {
    ip netns del $a 2>/dev/null || true
    ip netns del $b 2>/dev/null || true
}

# set_speed MEGABITS: of the cable, both ways. It passes a millisecond's worth at once, and drops nothing: TCP would
# wait for a fifth of a second.
set_speed() {
    local host
    for host in $a $b; do
        tc -n $host qdisc replace dev cable root tbf rate "$1mbit" burst $(($1 * 125 + 70000)) limit 32mb 2>tc.log || return 1
    done
}

# run_at MEGABITS SEQUENCE_LENGTH STEPS: `times` becomes a line for each step after two to warm up: its seconds, and those that its
# busier process did not wait for messages.
run_at() {
    rm -rf out
    set_speed "$1"
    local how=(-launcher ssh -launcher-exec "$PWD/enter" -hosts 10.77.0.1,10.77.0.2)
    # Without UCX_RNDV_THRESH UCX announces large messages, and the announcements wait behind what is being sent already.
    ip netns exec $a env UCX_TLS=tcp,self UCX_NET_DEVICES=cable UCX_RNDV_THRESH=inf FI_PROVIDER=tcp "$MPIEXEC" "${how[@]}" -n 2 "$PLAIT" train \
        --from-scratch "$PWD/config.json" --data "$PWD/rows.jsonl" --data.sequence_length "$2" --data.shuffle false \
        --train.micro_batch 2 --train.steps "$3" --threads 1 --parallel.bucket_mb 8 --checkpoint.every 0 \
        --output "$PWD/out" >>log 2>&1 || { cat log >&2; return 1; }
    sed -n '3,$ s/.*"step_s":\([^,]*\).*"process_busy_s":\[\([^,]*\),\([^]]*\)\].*/\1 \2 \3/p' out/metrics.jsonl |
        awk '{ print $1, ($2 > $3 ? $2 : $3) }' >times
    [ "$(wc -l <times)" = $(($3 - 2)) ] || { cat out/metrics.jsonl times >&2; return 1; }
}

# median EXPRESSION: of each step, $1 and $2 being its two times.
median() { awk "{ print $1 }" times | sort -g | awk '{ v[NR] = $1 } END { print (v[int((NR + 1) / 2)] + v[int(NR / 2 + 1)]) / 2 }'; }

# whole EXPRESSION
whole() { awk "BEGIN { print int($1) }"; }

# true_that EXPRESSION
true_that() { awk "BEGIN { exit !($1) }"; }

@test "messages are hidden behind the backward pass, and it behind them" {
    local bytes speed messages compute calm hidden bound bound_compute try told=no
    for try in 1 2 3; do
        [ $SECONDS -lt 100 ] || break
        run_at 20000 256 8
        compute=$(median '$2')
        calm=$(median '$1 / $2')
        true_that "$calm <= 1.08" || continue # one process has less of its core than the other
        # Each host sends half of the gradients to be summed, and half of the sums. The cable is never full, so how
        # long messages take is measured: in steps of two tokens a row.
        bytes=$((4 * $(sed -n 's/^trainable params: \([0-9]*\).*/\1/p' log | head -n 1)))
        speed=$(whole "8 * $bytes / ($compute / 3) / 1e6")
        run_at $speed 2 8
        messages=$(median '$1')
        # Messages that take a third of the time of computing. A step is set beside its own computing, since what others
        # take of the machine makes both of them longer.
        run_at $(whole "$speed * $messages / ($compute / 3)") 256 8
        hidden=$(median '$1 / $2')
        speed=$(whole "$speed * $messages / ($compute * 5)")
        run_at $speed 2 8
        messages=$(median '$1')
        run_at $speed 256 8
        bound=$(median "\$1 / $messages")
        bound_compute=$(median '$2')
        echo "# computing takes $compute s, a step without waiting for messages $calm of it; where they take a third of it, $hidden;" \
            "where they take $messages s, a step takes $bound of that (computing $bound_compute s)" >&3
        # Were nothing hidden, it would be 1.33 and 1.2.
        true_that "$hidden <= 1.15 && $bound <= 1.15" && return 0
        # Both may have less of their cores than when the speed was chosen.
        true_that "$bound_compute > 1.2 * $compute" || told=yes
    done
    [ $told = no ] || return 1
    skip "the machine is too busy to tell"
}
