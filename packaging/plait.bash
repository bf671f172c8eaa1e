# Bash completion of plait. Made by `make docs` from the tables of fields and commands.
_plait()
{
    local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}" words="" files="" flags=""
    COMPREPLY=()
    # Bash splits --field=value at the sign.
    if [[ $cur == "=" ]]; then
        cur=""
    elif [[ $prev == "=" ]]; then
        prev="${COMP_WORDS[COMP_CWORD-2]}"
    fi
    if [[ $COMP_CWORD == 1 ]]; then
        COMPREPLY=($(compgen -W "init train plan generate eval merge inspect help --help --version" -- "$cur"))
        return
    fi
    case "$prev" in
        --model) files=d ;;
        --from-scratch) files=f ;;
        --adapter) files=d ;;
        --output) files=d ;;
        --method) words="full lora" ;;
        --precision) words="f32 bf16" ;;
        --data) files=f ;;
        --data.format) words="auto text completion alpaca qa messages sharegpt tokens" ;;
        --data.template) words="auto plain chat" files=f ;;
        --data.loss) words="auto answers all" ;;
        --data.overlong) words="cut drop" ;;
        --data.shuffle) words="true false" ;;
        --data.validation) files=f ;;
        --data.cache) files=d ;;
        --lora.targets) words="all-linear" ;;
        --lora.dora) words="true false" ;;
        --lora.rslora) words="true false" ;;
        --lora.init) words="true false gaussian pissa pissa_niter_N olora orthogonal" ;;
        --lora.bias) words="none all lora_only" ;;
        --optimizer.name) words="adamw sgd" ;;
        --optimizer.nesterov) words="true false" ;;
        --scheduler.name) words="linear cosine cosine_with_restarts polynomial constant constant_with_warmup inverse_sqrt cosine_with_min_lr cosine_warmup_with_min_lr warmup_stable_decay WarmupLR WarmupDecayLR WarmupCosineLR OneCycle LRRangeTest" ;;
        --scheduler.warmup_type) words="linear cosine 1-sqrt log" ;;
        --scheduler.decay_type) words="linear cosine 1-sqrt log" ;;
        --scheduler.cycle_momentum) words="true false" ;;
        --scheduler.lr_range_test_staircase) words="true false" ;;
        --memory.recompute) words="none full" ;;
        --memory.offload.optimizer) words="none disk" ;;
        --memory.offload.params) words="none disk" ;;
        --memory.offload.path) files=d ;;
        --parallel.sync_each_batch) words="true false" ;;
        --checkpoint.best) words="true false" ;;
        --checkpoint.background) words="true false" ;;
        --log.profile) words="true false" ;;
        --prompts) files=f ;;
        --chat) words="true false" ;;
        --greedy) words="true false" ;;
        --json) words="true false" ;;
    esac
    if [[ -z $words$files && $cur != -* ]]; then
        files=f
    fi
    case "${COMP_WORDS[1]}" in
        init) flags="--help --model --from-scratch --adapter --output --method --precision --threads --data --data.weights --data.format --data.fields --data.template --data.loss --data.sequence_length --data.overlong --data.shuffle --data.validation --data.validation_split --data.cache --lora.r --lora.alpha --lora.dropout --lora.targets --lora.exclude --lora.dora --lora.rslora --lora.init --lora.bias --lora.modules_to_save --lora.rank_pattern --lora.alpha_pattern --lora.layers --lora.layers_pattern --lora.lr_ratio --optimizer.name --optimizer.lr --optimizer.betas --optimizer.eps --optimizer.weight_decay --optimizer.momentum --optimizer.nesterov --scheduler.name --scheduler.warmup_steps --scheduler.warmup_ratio --scheduler.decay_steps --scheduler.num_cycles --scheduler.power --scheduler.lr_end --scheduler.min_lr --scheduler.min_lr_rate --scheduler.warmup_lr_rate --scheduler.min_lr_ratio --scheduler.warmup_type --scheduler.decay_type --scheduler.timescale --scheduler.warmup_min_lr --scheduler.warmup_max_lr --scheduler.warmup_min_ratio --scheduler.cos_min_ratio --scheduler.cycle_min_lr --scheduler.cycle_max_lr --scheduler.cycle_first_step_size --scheduler.cycle_second_step_size --scheduler.cycle_first_stair_count --scheduler.cycle_second_stair_count --scheduler.decay_step_size --scheduler.decay_lr_rate --scheduler.cycle_momentum --scheduler.cycle_min_mom --scheduler.cycle_max_mom --scheduler.decay_mom_rate --scheduler.lr_range_test_min_lr --scheduler.lr_range_test_step_size --scheduler.lr_range_test_step_rate --scheduler.lr_range_test_staircase --train.steps --train.epochs --train.micro_batch --train.micro_batch_tokens --train.accumulation --train.clip --train.seed --train.freeze --train.eval_every --train.early_stop --memory.recompute --memory.budget --memory.offload.optimizer --memory.offload.params --memory.offload.path --memory.offload.buffer --parallel.dp --parallel.tp --parallel.pp --parallel.cp --parallel.zero --parallel.shard_size --parallel.prefetch --parallel.bucket_mb --parallel.sync_each_batch --checkpoint.every --checkpoint.keep --checkpoint.best --checkpoint.background --log.every --log.profile" ;;
        train) flags="--help --model --from-scratch --adapter --output --method --precision --threads --data --data.weights --data.format --data.fields --data.template --data.loss --data.sequence_length --data.overlong --data.shuffle --data.validation --data.validation_split --data.cache --lora.r --lora.alpha --lora.dropout --lora.targets --lora.exclude --lora.dora --lora.rslora --lora.init --lora.bias --lora.modules_to_save --lora.rank_pattern --lora.alpha_pattern --lora.layers --lora.layers_pattern --lora.lr_ratio --optimizer.name --optimizer.lr --optimizer.betas --optimizer.eps --optimizer.weight_decay --optimizer.momentum --optimizer.nesterov --scheduler.name --scheduler.warmup_steps --scheduler.warmup_ratio --scheduler.decay_steps --scheduler.num_cycles --scheduler.power --scheduler.lr_end --scheduler.min_lr --scheduler.min_lr_rate --scheduler.warmup_lr_rate --scheduler.min_lr_ratio --scheduler.warmup_type --scheduler.decay_type --scheduler.timescale --scheduler.warmup_min_lr --scheduler.warmup_max_lr --scheduler.warmup_min_ratio --scheduler.cos_min_ratio --scheduler.cycle_min_lr --scheduler.cycle_max_lr --scheduler.cycle_first_step_size --scheduler.cycle_second_step_size --scheduler.cycle_first_stair_count --scheduler.cycle_second_stair_count --scheduler.decay_step_size --scheduler.decay_lr_rate --scheduler.cycle_momentum --scheduler.cycle_min_mom --scheduler.cycle_max_mom --scheduler.decay_mom_rate --scheduler.lr_range_test_min_lr --scheduler.lr_range_test_step_size --scheduler.lr_range_test_step_rate --scheduler.lr_range_test_staircase --train.steps --train.epochs --train.micro_batch --train.micro_batch_tokens --train.accumulation --train.clip --train.seed --train.freeze --train.eval_every --train.early_stop --memory.recompute --memory.budget --memory.offload.optimizer --memory.offload.params --memory.offload.path --memory.offload.buffer --parallel.dp --parallel.tp --parallel.pp --parallel.cp --parallel.zero --parallel.shard_size --parallel.prefetch --parallel.bucket_mb --parallel.sync_each_batch --checkpoint.every --checkpoint.keep --checkpoint.best --checkpoint.background --log.every --log.profile --ranks" ;;
        plan) flags="--help --model --from-scratch --adapter --output --method --precision --threads --data --data.weights --data.format --data.fields --data.template --data.loss --data.sequence_length --data.overlong --data.shuffle --data.validation --data.validation_split --data.cache --lora.r --lora.alpha --lora.dropout --lora.targets --lora.exclude --lora.dora --lora.rslora --lora.init --lora.bias --lora.modules_to_save --lora.rank_pattern --lora.alpha_pattern --lora.layers --lora.layers_pattern --lora.lr_ratio --optimizer.name --optimizer.lr --optimizer.betas --optimizer.eps --optimizer.weight_decay --optimizer.momentum --optimizer.nesterov --scheduler.name --scheduler.warmup_steps --scheduler.warmup_ratio --scheduler.decay_steps --scheduler.num_cycles --scheduler.power --scheduler.lr_end --scheduler.min_lr --scheduler.min_lr_rate --scheduler.warmup_lr_rate --scheduler.min_lr_ratio --scheduler.warmup_type --scheduler.decay_type --scheduler.timescale --scheduler.warmup_min_lr --scheduler.warmup_max_lr --scheduler.warmup_min_ratio --scheduler.cos_min_ratio --scheduler.cycle_min_lr --scheduler.cycle_max_lr --scheduler.cycle_first_step_size --scheduler.cycle_second_step_size --scheduler.cycle_first_stair_count --scheduler.cycle_second_stair_count --scheduler.decay_step_size --scheduler.decay_lr_rate --scheduler.cycle_momentum --scheduler.cycle_min_mom --scheduler.cycle_max_mom --scheduler.decay_mom_rate --scheduler.lr_range_test_min_lr --scheduler.lr_range_test_step_size --scheduler.lr_range_test_step_rate --scheduler.lr_range_test_staircase --train.steps --train.epochs --train.micro_batch --train.micro_batch_tokens --train.accumulation --train.clip --train.seed --train.freeze --train.eval_every --train.early_stop --memory.recompute --memory.budget --memory.offload.optimizer --memory.offload.params --memory.offload.path --memory.offload.buffer --parallel.dp --parallel.tp --parallel.pp --parallel.cp --parallel.zero --parallel.shard_size --parallel.prefetch --parallel.bucket_mb --parallel.sync_each_batch --checkpoint.every --checkpoint.keep --checkpoint.best --checkpoint.background --log.every --log.profile --ranks --json" ;;
        generate) flags="--help --model --adapter --precision --threads --data.template --memory.budget --prompt --prompts --batch --chat --system --max-tokens --greedy --temperature --top-k --top-p --min-p --repetition-penalty --seed --json" ;;
        eval) flags="--help --model --adapter --precision --threads --data --data.format --data.fields --data.template --data.loss --data.sequence_length --data.overlong --data.cache --train.micro_batch --train.micro_batch_tokens --memory.budget --json" ;;
        merge) flags="--help --model --adapter --output --precision --threads" ;;
        inspect) flags="--help --model --from-scratch --adapter --threads --data --data.format --data.fields --data.template --data.loss --data.sequence_length --data.overlong --json" ;;
        help) words="init train plan generate eval merge inspect" files="" ;;
    esac
    if [[ $cur == -* ]]; then
        words="$flags" files=""
    fi
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
    if [[ -n $files ]]; then
        compopt -o filenames 2>/dev/null
        local IFS=$'\n'
        COMPREPLY+=($(compgen -"$files" -- "$cur"))
    fi
}
complete -F _plait plait
